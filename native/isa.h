// Which instruction set the kernels use: the best the processor has, or a forced one for tests.
#pragma once

namespace strata {

struct Products; // products.h
struct Ops;      // ops.h

enum class Isa { scalar = 0, avx2 = 1, avx512 = 2, amx = 3 }; // amx: AVX-512, and tiles for prompts
constexpr Isa ALL_ISAS[] = {Isa::scalar, Isa::avx2, Isa::avx512, Isa::amx};

Isa best_isa();             // what this processor and operating system can run
bool is_supported(Isa isa); // whether kernels for isa exist and can run here
const char *isa_name(Isa isa);

// Kernel tables; isa must be supported.
const Products &products(Isa isa);
const Ops &ops(Isa isa);

namespace isa_scalar {
extern const Products products_table;
extern const Ops ops_table;
} // namespace isa_scalar
#ifdef STRATA_X86
namespace isa_avx2 {
extern const Products products_table;
extern const Ops ops_table;
} // namespace isa_avx2
namespace isa_avx512 {
extern const Products products_table;
extern const Ops ops_table;
} // namespace isa_avx512
namespace isa_amx {
extern const Products products_table; // its other operations are those of isa_avx512
} // namespace isa_amx
#endif

} // namespace strata
