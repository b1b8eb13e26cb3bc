// Weight products, compiled for the avx2 instruction set. Includes no C++ library templates (isa_avx2.cpp).
#define STRATA_ISA_NAMESPACE isa_avx2
#include "simd_avx2.h"

#include "products.inl"
