// One struct a block format: how the fields of a unit (panels.h) become the integers and scales of
// a 32-block. Included by products.inl in the namespace of one instruction set.
//
// A format has: UNIT (weights of a block) and UNIT_BYTES (its bytes); BIAS, added to its codes so that they are unsigned; WIDE,
// whether biased codes pass 128; NW float scales a block (2: one for each sixteen); NS integer scales
// a block (2, or 0 when folded into the float scale); NM minima a block. `head` reads what a unit's
// blocks share; `block` fills block b of the unit, a Block or (products.inl) a Staged of its kind.

struct Block {
    Bytes codes[8];
    Floats w[2];
    Ints s[2];
    Floats m[2];
};

template <Format ID, int BIAS_, bool WIDE_ = false, int NW_ = 1, int NS_ = 0, int NM_ = 0> struct Traits {
    static constexpr int UNIT = format_shape(ID).block_size, UNIT_BYTES = format_shape(ID).block_bytes;
    static constexpr int BIAS = BIAS_, NW = NW_, NS = NS_, NM = NM_;
    static constexpr bool WIDE = WIDE_;
};

inline void unpack_nibbles(const uint8_t *field, int part, Bytes codes[8]) {
    for (int p = 0; p < 4; p++) {
        const Bytes v = load_codes(field + 64 * p, part);
        codes[p] = low_nibbles(v);
        codes[p + 4] = high_nibbles(v);
    }
}
inline void unpack_nibbles(const uint8_t *field, int part, const uint8_t *table64, Bytes codes[8]) {
    for (int p = 0; p < 4; p++) {
        const Bytes v = load_codes(field + 64 * p, part);
        codes[p] = lookup16_low(v, table64);
        codes[p + 4] = lookup16_high(v, table64);
    }
}
inline void unpack_two_bits(const uint8_t *field, int part, Bytes codes[8]) {
    for (int q = 0; q < 2; q++) {
        const Bytes v = load_codes(field + 64 * q, part);
        codes[4 * q] = two_bits<0>(v);
        codes[4 * q + 1] = two_bits<2>(v);
        codes[4 * q + 2] = two_bits<4>(v);
        codes[4 * q + 3] = two_bits<6>(v);
    }
}
inline void add_high_bits(const uint8_t *masks, int part, uint8_t value, Bytes codes[8]) {
    for (int k = 0; k < 8; k++) codes[k] = add_where(codes[k], load_mask(masks + 8 * k, part), value);
}
inline void apply_signs(const uint8_t *masks, int part, Bytes codes[8]) {
    for (int k = 0; k < 8; k++)
        codes[k] = negate_where(codes[k], load_mask(masks + 8 * k, part), 2 * GRID_BIAS);
}
inline void apply_signs7(const uint8_t *field, int part, Bytes codes[8]) {
    for (int i = 0; i < 4; i++) {
        Mask first, second;
        load_signs7(field + 14 * i, part, first, second);
        codes[2 * i] = negate_where(codes[2 * i], first, 2 * GRID_BIAS);
        codes[2 * i + 1] = negate_where(codes[2 * i + 1], second, 2 * GRID_BIAS);
    }
}
inline Ints byte_of(Ints v, int i) { return iand(ishr(v, 8 * i), iset(255)); }

struct FormatQ8_0 : Traits<Q8_0, 128, true> {
    struct Head {};
    static inline void head(const uint8_t *, int, Head &) {}
    template <class B> static inline void block(const uint8_t *u, int part, const Head &, int, B &o) {
        o.w[0] = load_half(u, part);
        for (int k = 0; k < 8; k++) o.codes[k] = load_codes(u + 32 + 64 * k, part);
    }
};

struct FormatQ4_0 : Traits<Q4_0, 8> {
    struct Head {};
    static inline void head(const uint8_t *, int, Head &) {}
    template <class B> static inline void block(const uint8_t *u, int part, const Head &, int, B &o) {
        o.w[0] = load_half(u, part);
        unpack_nibbles(u + 32, part, o.codes);
    }
};

struct FormatQ4_1 : Traits<Q4_1, 0, false, 1, 0, 1> {
    struct Head {};
    static inline void head(const uint8_t *, int, Head &) {}
    template <class B> static inline void block(const uint8_t *u, int part, const Head &, int, B &o) {
        o.w[0] = load_half(u, part);
        o.m[0] = load_half(u + 32, part);
        unpack_nibbles(u + 64, part, o.codes);
    }
};

struct FormatQ5_0 : Traits<Q5_0, 16> {
    struct Head {};
    static inline void head(const uint8_t *, int, Head &) {}
    template <class B> static inline void block(const uint8_t *u, int part, const Head &, int, B &o) {
        o.w[0] = load_half(u, part);
        unpack_nibbles(u + 96, part, o.codes);
        add_high_bits(u + 32, part, 16, o.codes);
    }
};

struct FormatQ5_1 : Traits<Q5_1, 0, false, 1, 0, 1> {
    struct Head {};
    static inline void head(const uint8_t *, int, Head &) {}
    template <class B> static inline void block(const uint8_t *u, int part, const Head &, int, B &o) {
        o.w[0] = load_half(u, part);
        o.m[0] = load_half(u + 32, part);
        unpack_nibbles(u + 128, part, o.codes);
        add_high_bits(u + 64, part, 16, o.codes);
    }
};

// Values of IQ4_NL and IQ4_XS plus 128; of MXFP4 and NVFP4, doubled, plus 16.
alignas(64) constexpr uint8_t IQ4_TABLE[64] = {
    1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241,
    1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241,
    1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241,
    1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
alignas(64) constexpr uint8_t FP4_TABLE[64] = {
    16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4,
    16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4,
    16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4,
    16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

struct FormatIQ4_NL : Traits<IQ4_NL, 128, true> {
    struct Head {};
    static inline void head(const uint8_t *, int, Head &) {}
    template <class B> static inline void block(const uint8_t *u, int part, const Head &, int, B &o) {
        o.w[0] = load_half(u, part);
        unpack_nibbles(u + 32, part, IQ4_TABLE, o.codes);
    }
};

struct FormatMXFP4 : Traits<MXFP4, 16> {
    struct Head {};
    static inline void head(const uint8_t *, int, Head &) {}
    template <class B> static inline void block(const uint8_t *u, int part, const Head &, int, B &o) {
        // 2^(e - 128): half of the stored power, since codes are doubled; subnormal for e below 2.
        const Ints e = load_u8(u, part);
        const Ints is_small = isub(iset(0), ishr(isub(e, iset(2)), 31));
        const Ints normal = ishl(isub(e, iset(1)), 23);
        const Ints small = ishl(iadd(e, iset(1)), 21);
        o.w[0] = as_float(ior(iand(is_small, small), iand(isub(iset(-1), is_small), normal)));
        unpack_nibbles(u + 16, part, FP4_TABLE, o.codes);
    }
};

struct FormatNVFP4 : Traits<NVFP4, 16, false, 2> {
    struct Head {};
    static inline void head(const uint8_t *, int, Head &) {}
    // ue4m3: four bits of exponent, three of mantissa; 0x7f means zero. Halved (doubled codes).
    static inline Floats scale(const uint8_t *field, int part) {
        const Ints e = load_u8(field, part);
        const Ints distance = isub(e, iset(127));
        const Ints is_used = isub(iset(0), ishr(ior(distance, isub(iset(0), distance)), 31));
        const Ints bits = iand(ishl(iand(e, iset(127)), 20), is_used);
        return fmul(as_float(bits), fset(0x1p119f));
    }
    template <class B> static inline void block(const uint8_t *u, int part, const Head &, int b, B &o) {
        for (int half = 0; half < 2; half++) {
            const int s = 2 * b + half;
            o.w[half] = scale(u + 16 * s, part);
            for (int q = 0; q < 2; q++) {
                const Bytes v = load_codes(u + 64 + 64 * (2 * s + q), part);
                o.codes[4 * half + q] = lookup16_low(v, FP4_TABLE);
                o.codes[4 * half + 2 + q] = lookup16_high(v, FP4_TABLE);
            }
        }
    }
};

struct FormatQ2_0 : Traits<Q2_0, 1> {
    struct Head {
        Floats d;
    };
    static inline void head(const uint8_t *u, int part, Head &h) { h.d = load_half(u, part); }
    template <class B> static inline void block(const uint8_t *u, int part, const Head &h, int b, B &o) {
        o.w[0] = h.d;
        unpack_two_bits(u + 32 + 128 * b, part, o.codes);
    }
};

struct FormatQ2_K : Traits<Q2_K, 0, false, 1, 2, 2> {
    struct Head {
        Floats d, min;
    };
    static inline void head(const uint8_t *u, int part, Head &h) {
        h.d = load_half(u, part);
        h.min = fmul(load_half(u + 32, part), fset(-1.0f));
    }
    template <class B> static inline void block(const uint8_t *u, int part, const Head &h, int b, B &o) {
        o.w[0] = h.d;
        for (int half = 0; half < 2; half++) {
            const Ints v = load_u8(u + 64 + 16 * (2 * b + half), part);
            o.s[half] = iand(v, iset(15));
            o.m[half] = fmul(h.min, to_float(ishr(v, 4)));
        }
        unpack_two_bits(u + 320 + 128 * b, part, o.codes);
    }
};

struct FormatQ3_K : Traits<Q3_K, 4, false, 1, 2> {
    struct Head {
        Floats d;
        Ints scales[4];
    };
    static inline void head(const uint8_t *u, int part, Head &h) {
        h.d = load_half(u, part);
        const Ints a = load_u32(u + 32, part), b = load_u32(u + 96, part), c = load_u32(u + 160, part);
        const Ints low = iset(0x0f0f0f0f), two = iset(0x03030303);
        h.scales[0] = ior(iand(a, low), ishl(iand(c, two), 4));
        h.scales[1] = ior(iand(b, low), ishl(iand(ishr(c, 2), two), 4));
        h.scales[2] = ior(iand(ishr(a, 4), low), ishl(iand(ishr(c, 4), two), 4));
        h.scales[3] = ior(iand(ishr(b, 4), low), ishl(iand(ishr(c, 6), two), 4));
    }
    template <class B> static inline void block(const uint8_t *u, int part, const Head &h, int b, B &o) {
        o.w[0] = h.d;
        for (int half = 0; half < 2; half++)
            o.s[half] = isub(byte_of(h.scales[b / 2], 2 * (b % 2) + half), iset(32));
        unpack_two_bits(u + 736 + 128 * b, part, o.codes);
        add_high_bits(u + 224 + 64 * b, part, 4, o.codes);
    }
};

// Scales and minima of Q4_K and Q5_K: eight of six bits each in three words.
struct KHead {
    Floats d, min;
    Ints scales[2], mins[2];
};
inline void k_head(const uint8_t *u, int part, KHead &h) {
    h.d = load_half(u, part);
    h.min = fmul(load_half(u + 32, part), fset(-1.0f));
    const Ints a = load_u32(u + 64, part), b = load_u32(u + 128, part), c = load_u32(u + 192, part);
    const Ints low = iset(0x0f0f0f0f), six = iset(0x3f3f3f3f), two = iset(0x03030303);
    h.scales[0] = iand(a, six);
    h.mins[0] = iand(b, six);
    h.scales[1] = ior(iand(c, low), ishl(iand(ishr(a, 6), two), 4));
    h.mins[1] = ior(iand(ishr(c, 4), low), ishl(iand(ishr(b, 6), two), 4));
}
template <class B> inline void k_scales(const KHead &h, int b, B &o) {
    o.w[0] = fmul(h.d, to_float(byte_of(h.scales[b / 4], b % 4)));
    o.m[0] = fmul(h.min, to_float(byte_of(h.mins[b / 4], b % 4)));
}

struct FormatQ4_K : Traits<Q4_K, 0, false, 1, 0, 1> {
    using Head = KHead;
    static inline void head(const uint8_t *u, int part, Head &h) { k_head(u, part, h); }
    template <class B> static inline void block(const uint8_t *u, int part, const Head &h, int b, B &o) {
        k_scales(h, b, o);
        unpack_nibbles(u + 256 + 256 * b, part, o.codes);
    }
};

struct FormatQ5_K : Traits<Q5_K, 0, false, 1, 0, 1> {
    using Head = KHead;
    static inline void head(const uint8_t *u, int part, Head &h) { k_head(u, part, h); }
    template <class B> static inline void block(const uint8_t *u, int part, const Head &h, int b, B &o) {
        k_scales(h, b, o);
        unpack_nibbles(u + 768 + 256 * b, part, o.codes);
        add_high_bits(u + 256 + 64 * b, part, 16, o.codes);
    }
};

struct FormatQ6_K : Traits<Q6_K, 32, false, 1, 2> {
    struct Head {
        Floats d;
    };
    static inline void head(const uint8_t *u, int part, Head &h) { h.d = load_half(u, part); }
    template <class B> static inline void block(const uint8_t *u, int part, const Head &h, int b, B &o) {
        o.w[0] = h.d;
        for (int half = 0; half < 2; half++) o.s[half] = load_s8(u + 32 + 16 * (2 * b + half), part);
        for (int q = 0; q < 2; q++) {
            const Bytes high = load_codes(u + 288 + 64 * (2 * b + q), part);
            const Bytes at_four[4] = {shift_left<4>(high), shift_left<2>(high), high, shift_right<2>(high)};
            for (int p = 0; p < 4; p++) {
                const Bytes v = load_codes(u + 1312 + 64 * (4 * b + p), part);
                o.codes[4 * q + p] = low_four_of(q ? shift_right<4>(v) : v, at_four[p], 0x3f);
            }
        }
    }
};

struct FormatIQ4_XS : Traits<IQ4_XS, 128, true> {
    struct Head {
        Floats d;
        Ints high, low;
    };
    static inline void head(const uint8_t *u, int part, Head &h) {
        h.d = load_half(u, part);
        h.high = load_u16(u + 32, part);
        h.low = load_u32(u + 64, part);
    }
    template <class B> static inline void block(const uint8_t *u, int part, const Head &h, int b, B &o) {
        const Ints scale = ior(iand(ishr(h.low, 4 * b), iset(15)), ishl(iand(ishr(h.high, 2 * b), iset(3)), 4));
        o.w[0] = fmul(h.d, to_float(isub(scale, iset(32))));
        unpack_nibbles(u + 128 + 256 * b, part, IQ4_TABLE, o.codes);
    }
};

// The i-quants: d (times a power of two) and, per block, small scales 2s + 1.
template <Format ID, int NS_ = 0> struct GridTraits : Traits<ID, GRID_BIAS, false, 1, NS_> {
    struct Head {
        Floats d;
    };
};
inline Ints odd_scale(Ints s) { return iadd(iadd(s, s), iset(1)); }

struct FormatIQ2_XXS : GridTraits<IQ2_XXS> {
    static inline void head(const uint8_t *u, int part, Head &h) { h.d = fmul(load_half(u, part), fset(0.125f)); }
    template <class B> static inline void block(const uint8_t *u, int part, const Head &h, int b, B &o) {
        const uint8_t *f = u + 32 + 128 * b;
        o.w[0] = fmul(h.d, to_float(odd_scale(load_u4(f + 120, part))));
        grid8<256>(load_codes(f, part), nullptr, grids[GRID_IQ2_XXS], o.codes);
        apply_signs7(f + 64, part, o.codes);
    }
};

template <class B> inline void two_odd_scales(const uint8_t *field, int part, B &o) {
    const Ints v = load_u8(field, part);
    o.s[0] = odd_scale(iand(v, iset(15)));
    o.s[1] = odd_scale(ishr(v, 4));
}

struct FormatIQ2_XS : GridTraits<IQ2_XS, 2> {
    static inline void head(const uint8_t *u, int part, Head &h) { h.d = fmul(load_half(u, part), fset(0.125f)); }
    template <class B> static inline void block(const uint8_t *u, int part, const Head &h, int b, B &o) {
        const uint8_t *f = u + 32 + 144 * b;
        o.w[0] = h.d;
        two_odd_scales(f + 128, part, o);
        const Mask high = load_mask(f + 64, part);
        grid8<512>(load_codes(f, part), &high, grids[GRID_IQ2_XS], o.codes);
        apply_signs7(f + 72, part, o.codes);
    }
};

struct FormatIQ2_S : GridTraits<IQ2_S, 2> {
    static inline void head(const uint8_t *u, int part, Head &h) { h.d = fmul(load_half(u, part), fset(0.125f)); }
    template <class B> static inline void block(const uint8_t *u, int part, const Head &h, int b, B &o) {
        const uint8_t *f = u + 32 + 160 * b;
        o.w[0] = h.d;
        two_odd_scales(f + 144, part, o);
        const Mask high[2] = {load_mask(f + 64, part), load_mask(f + 72, part)};
        grid8<1024>(load_codes(f, part), high, grids[GRID_IQ2_S], o.codes);
        apply_signs(f + 80, part, o.codes);
    }
};

struct FormatIQ3_XXS : GridTraits<IQ3_XXS> {
    static inline void head(const uint8_t *u, int part, Head &h) { h.d = fmul(load_half(u, part), fset(0.25f)); }
    template <class B> static inline void block(const uint8_t *u, int part, const Head &h, int b, B &o) {
        const uint8_t *f = u + 32 + 192 * b;
        o.w[0] = fmul(h.d, to_float(odd_scale(load_u4(f + 184, part))));
        for (int i = 0; i < 2; i++)
            grid4<256>(load_codes(f + 64 * i, part), nullptr, grids[GRID_IQ3_XXS], o.codes + 4 * i);
        apply_signs7(f + 128, part, o.codes);
    }
};

struct FormatIQ3_S : GridTraits<IQ3_S> {
    static inline void head(const uint8_t *u, int part, Head &h) { h.d = load_half(u, part); }
    template <class B> static inline void block(const uint8_t *u, int part, const Head &h, int b, B &o) {
        const uint8_t *f = u + 32 + 216 * b;
        o.w[0] = fmul(h.d, to_float(odd_scale(load_u4(f + 208, part))));
        for (int i = 0; i < 2; i++) {
            const Mask high = load_mask(f + 128 + 8 * i, part);
            grid4<512>(load_codes(f + 64 * i, part), &high, grids[GRID_IQ3_S], o.codes + 4 * i);
        }
        apply_signs(f + 144, part, o.codes);
    }
};

// IQ1 values are a grid's -1, 0, 1 plus or minus an eighth: codes are eight times that.
struct FormatIQ1_S : GridTraits<IQ1_S> {
    static inline void head(const uint8_t *u, int part, Head &h) { h.d = fmul(load_half(u, part), fset(0.125f)); }
    template <class B> static inline void block(const uint8_t *u, int part, const Head &h, int b, B &o) {
        const uint8_t *f = u + 32 + 96 * b;
        const Ints v = load_u4(f + 88, part);
        o.w[0] = fmul(h.d, to_float(odd_scale(iand(v, iset(7)))));
        const Mask high[3] = {load_mask(f + 64, part), load_mask(f + 72, part), load_mask(f + 80, part)};
        grid8<2048>(load_codes(f, part), high, grids[GRID_IQ1], o.codes);
        const Ints is_minus = isub(iset(0), ishr(v, 3));
        const Bytes shift = (Bytes)iadd(iset(0x01010101), iand(is_minus, iset((int32_t)0xfefefefe)));
        for (int k = 0; k < 8; k++) o.codes[k] = badd(o.codes[k], shift);
    }
};

struct FormatIQ1_M : GridTraits<IQ1_M, 2> {
    static inline void head(const uint8_t *u, int part, Head &h) { h.d = fmul(load_half(u, part), fset(0.125f)); }
    template <class B> static inline void block(const uint8_t *u, int part, const Head &h, int b, B &o) {
        const uint8_t *f = u + 32 + 108 * b;
        o.w[0] = h.d;
        for (int half = 0; half < 2; half++) {
            const uint8_t *bits = f + 96 + 6 * half;
            const Ints s = iadd(iadd(select_one(load_row_mask(bits, part), 1), select_one(load_row_mask(bits + 2, part), 2)),
                                select_one(load_row_mask(bits + 4, part), 4));
            o.s[half] = odd_scale(s);
        }
        const Mask high[3] = {load_mask(f + 64, part), load_mask(f + 72, part), load_mask(f + 80, part)};
        grid8<2048>(load_codes(f, part), high, grids[GRID_IQ1], o.codes);
        for (int i = 0; i < 4; i++) {
            const RowMask is_minus = load_row_mask(f + 88 + 2 * i, part);
            const Bytes shift = (Bytes)iadd(iset(0x01010101), select_one(is_minus, (int32_t)0xfefefefe));
            codes_add(o.codes + 2 * i, shift);
        }
    }
    static inline void codes_add(Bytes *codes, Bytes shift) {
        codes[0] = badd(codes[0], shift);
        codes[1] = badd(codes[1], shift);
    }
};
