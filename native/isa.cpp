#include "isa.h"

namespace strata {

bool is_supported(Isa isa) {
    if (isa == Isa::scalar) return true;
#ifdef STRATA_X86
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") &&
                      __builtin_cpu_supports("bmi2");
    if (isa == Isa::avx2) return avx2;
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
#else
    return false;
#endif
}

Isa best_isa() {
    if (is_supported(Isa::avx512)) return Isa::avx512;
    return is_supported(Isa::avx2) ? Isa::avx2 : Isa::scalar;
}

const char *isa_name(Isa isa) {
    static const char *names[] = {"scalar", "avx2", "avx512"};
    return names[static_cast<int>(isa)];
}

const Products &products(Isa isa) {
#ifdef STRATA_X86
    if (isa == Isa::avx512) return isa_avx512::products_table;
    if (isa == Isa::avx2) return isa_avx2::products_table;
#endif
    (void)isa;
    return isa_scalar::products_table;
}

const Ops &ops(Isa isa) {
#ifdef STRATA_X86
    if (isa == Isa::avx512) return isa_avx512::ops_table;
    if (isa == Isa::avx2) return isa_avx2::ops_table;
#endif
    (void)isa;
    return isa_scalar::ops_table;
}

} // namespace strata
