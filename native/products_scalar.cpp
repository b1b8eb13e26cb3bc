// Weight products, compiled for the scalar instruction set. Includes no C++ library templates (isa_scalar.cpp).
#define STRATA_ISA_NAMESPACE isa_scalar
#include "simd_scalar.h"

#include "products.inl"
