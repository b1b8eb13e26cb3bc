// Weight products with AMX tiles for prompts. Includes no C++ library templates (isa_avx512.cpp).
#define STRATA_ISA_NAMESPACE isa_amx
#define STRATA_AMX
#include "simd_avx512.h"

#include "products.inl"
