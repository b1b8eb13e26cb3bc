#include "isa.h"

#ifdef STRATA_X86
#include <cpuid.h>
#endif
#if defined(STRATA_X86) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace strata {

namespace {

// Whether tiles exist and the system lets this process use them; asks once.
bool has_tiles() {
#if defined(STRATA_X86) && defined(__linux__)
    static const bool is_allowed = [] {
        unsigned a, b, c, d;
        if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
        constexpr unsigned AMX_TILE = 1u << 24, AMX_INT8 = 1u << 25;
        if ((d & AMX_TILE) == 0 || (d & AMX_INT8) == 0) return false;
        constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
        return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
    }();
    return is_allowed;
#else
    return false;
#endif
}

} // namespace

bool is_supported(Isa isa) {
    if (isa == Isa::scalar) return true;
#ifdef STRATA_X86
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") &&
                      __builtin_cpu_supports("bmi2");
    if (isa == Isa::avx2) return avx2;
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
    return isa == Isa::amx ? avx512 && has_tiles() : avx512;
#else
    return false;
#endif
}

Isa best_isa() {
    Isa best = Isa::scalar;
    for (const Isa isa : ALL_ISAS)
        if (is_supported(isa)) best = isa;
    return best;
}

const char *isa_name(Isa isa) {
    static const char *names[] = {"scalar", "avx2", "avx512", "amx"};
    return names[static_cast<int>(isa)];
}

const Products &products(Isa isa) {
#ifdef STRATA_X86
    if (isa == Isa::amx) return isa_amx::products_table;
    if (isa == Isa::avx512) return isa_avx512::products_table;
    if (isa == Isa::avx2) return isa_avx2::products_table;
#endif
    (void)isa;
    return isa_scalar::products_table;
}

const Ops &ops(Isa isa) {
#ifdef STRATA_X86
    if (isa == Isa::avx512 || isa == Isa::amx) return isa_avx512::ops_table;
    if (isa == Isa::avx2) return isa_avx2::ops_table;
#endif
    (void)isa;
    return isa_scalar::ops_table;
}

} // namespace strata
