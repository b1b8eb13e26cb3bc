// Weight products, compiled for the avx512 instruction set. Includes no C++ library templates (isa_avx512.cpp).
#define STRATA_ISA_NAMESPACE isa_avx512
#include "simd_avx512.h"

#include "products.inl"
