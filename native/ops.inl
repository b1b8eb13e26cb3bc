// The table of model operations of one instruction set; isa_*.cpp includes this file once each.
// No C++ library templates here or below: see isa_scalar.cpp.
#include "ops.h"
#include "vec.h"

namespace strata {
namespace STRATA_ISA_NAMESPACE {
namespace lanes {

#include "ops_math.inl"

#include "ops_gdn.inl"
#include "ops_ple.inl"
#include "ops_qsa.inl"

} // namespace lanes

extern const Ops ops_table; // a const at namespace scope would be private to this file
const Ops ops_table = {
    lanes::exp_rows,         lanes::silu_rows,   lanes::sigmoid_rows,     lanes::softplus_rows,
    lanes::silu_of_quotient, lanes::rms_norm,    lanes::hc_mix,           lanes::hc_write,
    lanes::gdn_head,         lanes::gdn_rates,   lanes::gdn_columns,      lanes::gdn_gate,
    lanes::qsa_head,         lanes::qsa_pool,    lanes::qsa_score_blocks, lanes::qsa_choose,
    lanes::qsa_score_cells,  lanes::qsa_softmax, lanes::qsa_read,         lanes::ple_gate,
    lanes::ple_conv,         lanes::route,
};

} // namespace STRATA_ISA_NAMESPACE
} // namespace strata
