// Every kernel, compiled for the scalar instruction set. Includes no C++ library templates: the linker
// keeps one copy of such a template, and it could be the one this processor cannot run.
#define STRATA_ISA_NAMESPACE isa_scalar
#include "simd_scalar.h"

#include "ops.inl"
#include "products.inl"
