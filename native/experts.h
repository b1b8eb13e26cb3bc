// The experts of one layer in packed form, and one call of them.
#pragma once

#include <cstdint>
#include <vector>

#include "context.h"
#include "expert_source.h"
#include "memory.h"

namespace strata {

// Routed experts of a layer; the shared expert is a stack of one. Gate, up and down may differ in format.
class Experts {
  public:
    enum Role { gate = 0, up = 1, down = 2 };

    Experts(int gate_format, int up_format, int down_format, int64_t num, int64_t hidden, int64_t size);
    // The experts of a layer wherever they lie; nothing is to be loaded. The source outlives them.
    Experts(ExpertSource &source, int64_t layer);

    // Packs expert e from blocks as in the file; each role's outputs are multiplied by its scale.
    void load(Context &ctx, int64_t e, const uint8_t *const raw[3], const float scales[3]);

    int64_t num() const { return num_; }
    int64_t hidden() const { return hidden_; }
    int64_t size() const { return size_; }
    int64_t bytes() const;
    bool is_loaded(int64_t e) const { return is_loaded_[e] != 0; }
    int format(Role role) const { return formats_[role]; }
    int64_t rows(Role role) const { return role == down ? hidden_ : size_; }
    int64_t inner(Role role) const { return role == down ? size_ : hidden_; }
    const uint8_t *packed(Role role, int64_t e) const { return data_[role].get() + e * stack_bytes(role); }
    float scale(Role role, int64_t e) const { return scales_[3 * e + role]; }
    // Null where they are all in memory.
    ExpertSource *source() const { return source_; }
    int64_t layer() const { return layer_; }

  private:
    int64_t stack_bytes(Role role) const;

    int formats_[3];
    int64_t num_, hidden_, size_;
    Buffer data_[3];
    std::vector<float> scales_;
    std::vector<uint8_t> is_loaded_;
    ExpertSource *source_ = nullptr;
    int64_t layer_ = 0;
};

// One call: rows of x, the experts each row chose, their weights; the shared expert if there is one.
struct ExpertCall {
    const Experts *routed;
    const Experts *shared; // or null
    int64_t rows, k;
    const float *x;             // [rows, hidden]
    const int32_t *ids;         // [rows, k]
    const float *weights;       // [rows, k]
    const float *shared_weight; // [rows], or null
    float *out;                 // [rows, hidden]
};

// Runs the call (docs/numerics.md, C1). False if a value that had to be quantised is not finite.
// Throws ExpertsNotRead where an expert's file fails.
bool run_experts(Context &ctx, const ExpertCall &call);

} // namespace strata
