// Prompt products on AMX tiles: sixteen rows of activations times a panel's sixteen weight rows.
// Tiles only make the integer sums, which are exact; the terms and their order are those of
// panel_staged, so the bits are too. Included by products.inl, with the primitives of AVX-512.
//
// An unpacked block already is what a tile wants on the right: four consecutive codes of each of
// sixteen rows in a line of 64 bytes.

constexpr int TILE_ROWS = 16;

// Tiles have numbers, which the assembler must see as digits: 0 sums, 1 activations, 2 codes.

struct alignas(64) TileConfig {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes_per_row[16];
    uint8_t rows[16];
};

inline void configure_tiles() {
    TileConfig config = {};
    config.palette = 1;
    const auto shape = [&](int tile, int rows, int bytes) {
        config.rows[tile] = (uint8_t)rows;
        config.bytes_per_row[tile] = (uint16_t)bytes;
    };
    shape(0, 16, 64);
    shape(1, 16, 32);
    shape(2, 8, 64);
    // gcc 12 declares that the load reads eight bytes only, and would drop the stores above.
    asm volatile("" : : "m"(config) : "memory");
    _tile_loadconfig(&config);
}

// The codes of a tile's rows one after the other: in place, or gathered into `memory`. Null if too few.
inline const int8_t *rows_together(const Tile &tile, int8_t *memory) {
    const int64_t inner = tile.a->inner;
    if (tile.num < TILE_ROWS) return nullptr;
    if (!tile.rows) return tile.a->codes + tile.first * inner;
    for (int64_t i = 0; i < tile.num; i++) memcpy(memory + i * inner, tile.a->codes + tile.row(i) * inner, inner);
    return memory;
}

// sums[t][r] = integer dot of activation row t and weight row r over one block.
inline void tile_sums(const Bytes *codes, const int8_t *q, int64_t stride, int32_t sums[TILE_ROWS][PANEL_ROWS]) {
    _tile_zero(0);
    _tile_loadd(1, q, stride);
    _tile_loadd(2, codes, 64);
    _tile_dpbsud(0, 1, 2);
    _tile_stored(0, sums, 64);
}

// All full sixteens of a tile's rows against an unpacked panel; returns how many rows that are. None for
// formats with a scale for each half block: sixteen columns fill a quarter of a tile, and measured 0.8 of
// the speed of panel_staged (docs/performance.md).
template <class K>
int64_t panel_tiles(const Staged<K> *blocks, const Tile &tile, const int8_t *codes, float *out, int64_t out_stride,
                    int num_out) {
    if constexpr (K::NS == 2 || K::NW == 2) return 0;
    const int64_t num_rows = tile.num / TILE_ROWS * TILE_ROWS;
    if (num_rows == 0) return 0;
    const int64_t inner = tile.a->inner, num_blocks = inner / 32;
    alignas(64) int32_t sums[2][TILE_ROWS][PANEL_ROWS]; // in turns, so that stores and loads overlap
    configure_tiles();
    for (int64_t first = 0; first < num_rows; first += TILE_ROWS) {
        Floats acc[TILE_ROWS], g[TILE_ROWS];
        Token at[TILE_ROWS];
        const float *scales[TILE_ROWS];
        for (int t = 0; t < TILE_ROWS; t++) {
            acc[t] = fset(0.0f);
            at[t] = tile.token(first + t, 0);
            scales[t] = tile.a->scales + tile.row(first + t) * num_blocks;
        }
        for (int64_t group = 0; group < num_blocks; group += GROUP_BLOCKS) {
            const int64_t end = group + GROUP_BLOCKS < num_blocks ? group + GROUP_BLOCKS : num_blocks;
            for (int t = 0; t < TILE_ROWS; t++) g[t] = fset(0.0f);
            for (int64_t b = group; b < end; b++) {
                auto &dots = sums[b % 2];
                tile_sums(blocks[b].codes, codes + first * inner + 32 * b, inner, dots);
#pragma GCC unroll 16
                for (int t = 0; t < TILE_ROWS; t++) {
                    const Token token = {nullptr, at[t].correction + 2 * b, at[t].sums + 2 * b, scales[t][b]};
                    const Ints bias = iset(token.correction[0] + token.correction[1]);
                    g[t] = add_terms<K>(g[t], blocks[b], _mm512_load_si512(dots[t]), bias, token);
                }
            }
            for (int t = 0; t < TILE_ROWS; t++) acc[t] = fadd(acc[t], g[t]);
        }
        for (int t = 0; t < TILE_ROWS; t++) store_rows(out + (first + t) * out_stride, acc[t], 0, num_out);
    }
    _tile_release();
    return num_rows;
}
