// Model operations, compiled for the scalar instruction set. Includes no C++ library templates: the
// linker keeps one copy of such a template, and it could be the one this processor cannot run.
#define STRATA_ISA_NAMESPACE isa_scalar

#include "ops.inl"
#include "rows.inl"
