// What every operation is called with: the pool and the kernel tables of one instruction set.
#pragma once

#include "isa.h"
#include "pool.h"

namespace strata {

struct Context {
    Context(int num_threads, Isa isa_)
        : pool(num_threads), isa(isa_), products(strata::products(isa_)), ops(strata::ops(isa_)) {}
    Pool pool;
    Isa isa;
    const Products &products;
    const Ops &ops;
};

} // namespace strata
