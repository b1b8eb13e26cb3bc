// Model operations, compiled for the avx512 instruction set. Includes no C++ library templates: the
// linker keeps one copy of such a template, and it could be the one this processor cannot run.
#define STRATA_ISA_NAMESPACE isa_avx512

#include "ops.inl"
#include "rows.inl"
