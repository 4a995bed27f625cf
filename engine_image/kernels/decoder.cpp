// The forward pass of a decoder of the Llama family, all layers in one parallel region: `models/llama.py` is its
// reference. Activations and sums are float32; weights and the KV cache have formats of their own.
#include <cerrno>
#include <cmath>

#include "attention.h"
#include "gemm.h"
#include "matrix.h"
#include "team.h"

namespace inflight {

// As execution/cpu_decoder.py fills it, in this order. Biases are padded to whole panels; null: none.
struct Layer {
  const float* input_norm;
  Matrix qkv;
  const float* qkv_bias;
  const float* query_norm;  // [head_dim], with key_norm; null: heads are not normalised
  const float* key_norm;
  Matrix output;
  const float* output_bias;
  const float* mlp_norm;
  Matrix gate_up;  // interleaved
  const float* gate_up_bias;
  Matrix down;
  const float* down_bias;
};

struct Decoder {
  int64_t hidden, intermediate, num_layers, num_heads, num_kv_heads, head_dim, num_positions;
  float eps;
  Matrix embedding;
  Matrix head;
  const Layer* layers;
  const float* final_norm;
  const float* rotation;  // [num_positions, head_dim]: cosines of head_dim / 2 angles, then sines
};

namespace {

// Rows that go through the MLP together: its activations need memory for so many, however long the step is.
constexpr int64_t kMlpRows = 1024;

// Memory for the activations of a step, kept for the next one.
class Workspace {
 public:
  ~Workspace() { release(); }

  // What `layout` takes is counted first and handed out then.
  template <class Layout>
  int reserve(const Layout& layout) {
    begin_ = 0;
    used_ = 0;
    layout();
    if (used_ > capacity_) {
      release();
      memory_ = static_cast<uint8_t*>(inflight_allocate(used_));
      if (memory_ == nullptr) return ENOMEM;
      capacity_ = used_;
    }
    begin_ = reinterpret_cast<uintptr_t>(memory_);
    used_ = 0;
    layout();
    return 0;
  }

  template <class T>
  T* take(int64_t count) {
    T* at = reinterpret_cast<T*>(begin_ + used_);
    used_ += (count * int64_t(sizeof(T)) + kCacheLine - 1) / kCacheLine * kCacheLine;
    return at;
  }

 private:
  void release() {
    if (memory_ != nullptr) inflight_release(memory_, capacity_);
    memory_ = nullptr;
    capacity_ = 0;
  }

  uint8_t* memory_ = nullptr;
  uintptr_t begin_ = 0;
  int64_t capacity_ = 0, used_ = 0;
};

// Float32 rows, and the memory to have them rounded.
struct Rows {
  float* values;
  int64_t stride;
  uint8_t* rounded;
  float* scales;
  uint32_t* offsets;
  int64_t count;

  float* row(int64_t i) const { return values + i * stride; }

  void take(Workspace* workspace, const Matrix* m, int64_t rows, int64_t columns) {
    stride = padded(columns);
    count = rows;
    values = workspace->take<float>(rows * stride);
    if (m == nullptr || !m->rounds()) return;
    rounded = workspace->take<uint8_t>((rows + kSpareRows) * stride * m->rounded_bytes());
    scales = workspace->take<float>(rows * m->num_groups());
    offsets = workspace->take<uint32_t>(rows * m->num_groups());
  }

  void round(const Matrix& m, int64_t i) const {
    if (m.rounds()) round_row(m, row(i), rounded + i * stride * m.rounded_bytes(), scales + i, offsets + i, count);
  }

  Input input(const Matrix& m, int64_t from = 0) const {
    if (!m.rounds()) return {row(from), stride, nullptr, nullptr, nullptr, count};
    return {nullptr, stride, rounded + from * stride * m.rounded_bytes(), scales + from, offsets + from, count};
  }
};

// x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019); `to` may be x.
void rms_norm(const float* x, const float* weight, int64_t columns, float eps, float* to) {
  f32v squares = {};
  float rest = 0;
  const int64_t whole = columns / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) squares = fma(load<f32v>(x + i), load<f32v>(x + i), squares);
  for (int64_t i = whole; i < columns; i++) rest += x[i] * x[i];
  const float factor = 1.0f / std::sqrt((reduce_add(squares) + rest) / float(columns) + eps);
  for (int64_t i = 0; i < columns; i++) to[i] = x[i] * factor * weight[i];
}

// Halves of a head are the pairs, as in Hugging Face's models.
void rotate(float* __restrict head, const float* __restrict angles, int64_t head_dim) {
  const int64_t half = head_dim / 2;
  for (int64_t i = 0; i < half; i++) {
    const float cos = angles[i], sin = angles[half + i], first = head[i], second = head[half + i];
    head[i] = first * cos - second * sin;
    head[half + i] = second * cos + first * sin;
  }
}

}  // namespace

// The steps of one decoder, one at a time.
class DecoderRun {
 public:
  DecoderRun(Team* team, const Decoder* decoder) : team_(team), d_(*decoder) {}

  int forward(AttentionStep* step, const int64_t* token_ids, const int64_t* positions, int64_t num_tokens, float* out) {
    if (!fits(step, team_, num_tokens)) return EINVAL;
    if (num_tokens == 0) return 0;
    for (int64_t t = 0; t < num_tokens; t++) {
      if (token_ids[t] < 0 || token_ids[t] >= d_.embedding.outputs) return EINVAL;
      if (positions[t] < 0 || positions[t] >= d_.num_positions) return EINVAL;
    }
    const int64_t queries = d_.num_heads * d_.head_dim, keys = d_.num_kv_heads * d_.head_dim;
    const Layer& any = d_.layers[0];
    const int error = workspace_.reserve([&] {
      residual_.take(&workspace_, nullptr, num_tokens, d_.hidden);
      normed_.take(&workspace_, &any.qkv, num_tokens, d_.hidden);
      qkv_.take(&workspace_, nullptr, num_tokens, queries + 2 * keys);
      attended_.take(&workspace_, &any.output, num_tokens, queries);
      mlp_.take(&workspace_, &any.down, num_tokens < kMlpRows ? num_tokens : kMlpRows, d_.intermediate);
    });
    if (error != 0) return error;
    team_->run([&](int tid) {
      const Range mine = share(num_tokens, tid, team_->size());
      for (int64_t t = mine.begin; t < mine.end; t++) {
        d_.embedding.read_row(token_ids[t], residual_.row(t));
        norm_row(any.input_norm, any.qkv, t);
      }
      team_->barrier();
      for (int64_t i = 0; i < d_.num_layers; i++) {
        const Layer& layer = d_.layers[i];
        attention(layer, int(i), step, positions, num_tokens, mine, tid);
        mlp(layer, num_tokens, mine, tid);
        if (i + 1 < d_.num_layers) {
          for (int64_t t = mine.begin; t < mine.end; t++) norm_row(d_.layers[i + 1].input_norm, any.qkv, t);
          team_->barrier();
        }
      }
      for (int64_t t = mine.begin; t < mine.end; t++)
        rms_norm(residual_.row(t), d_.final_norm, d_.hidden, d_.eps, out + t * d_.hidden);
    });
    return 0;
  }

  int logits(const float* hidden, int64_t rows, float* out) {
    if (rows == 0) return 0;
    const int error = workspace_.reserve([&] { normed_.take(&workspace_, &d_.head, rows, d_.hidden); });
    if (error != 0) return error;
    team_->run([&](int tid) {
      const Range mine = share(rows, tid, team_->size());
      for (int64_t r = mine.begin; r < mine.end; r++) {
        memcpy(normed_.row(r), hidden + r * d_.hidden, d_.hidden * sizeof(float));
        normed_.round(d_.head, r);
      }
      team_->barrier();
      multiply(team_, tid, d_.head, normed_.input(d_.head), rows,
               {Output::kStore, out, d_.head.outputs, d_.head.outputs, nullptr});
    });
    return 0;
  }

 private:
  // The input of the product with `next`.
  void norm_row(const float* weight, const Matrix& next, int64_t t) {
    rms_norm(residual_.row(t), weight, d_.hidden, d_.eps, normed_.row(t));
    normed_.round(next, t);
  }

  void attention(const Layer& layer, int index, AttentionStep* step, const int64_t* positions, int64_t num_tokens,
                 Range mine, int tid) {
    const int64_t queries = d_.num_heads * d_.head_dim, keys = d_.num_kv_heads * d_.head_dim;
    multiply(team_, tid, layer.qkv, normed_.input(layer.qkv), num_tokens,
             {Output::kStore, qkv_.values, qkv_.stride, queries + 2 * keys, layer.qkv_bias});
    team_->barrier();
    for (int64_t t = mine.begin; t < mine.end; t++) {
      const float* angles = d_.rotation + positions[t] * d_.head_dim;
      for (int64_t h = 0; h < d_.num_heads + d_.num_kv_heads; h++) {
        float* head = qkv_.row(t) + h * d_.head_dim;
        const float* norm = h < d_.num_heads ? layer.query_norm : layer.key_norm;
        if (norm != nullptr) rms_norm(head, norm, d_.head_dim, d_.eps, head);
        rotate(head, angles, d_.head_dim);
      }
    }
    team_->barrier();
    write_kv(step, index, qkv_.values + queries, qkv_.values + queries + keys, qkv_.stride, tid);
    team_->barrier();
    attend(step, index, qkv_.values, qkv_.stride, attended_.values, attended_.stride, tid);
    team_->barrier();
    if (layer.output.rounds()) {
      for (int64_t t = mine.begin; t < mine.end; t++) attended_.round(layer.output, t);
      team_->barrier();
    }
    multiply(team_, tid, layer.output, attended_.input(layer.output), num_tokens,
             {Output::kAdd, residual_.values, residual_.stride, d_.hidden, layer.output_bias});
    team_->barrier();
  }

  void mlp(const Layer& layer, int64_t num_tokens, Range mine, int tid) {
    for (int64_t t = mine.begin; t < mine.end; t++) norm_row(layer.mlp_norm, layer.gate_up, t);
    team_->barrier();
    for (int64_t from = 0; from < num_tokens; from += kMlpRows) {
      const int64_t rows = num_tokens - from < kMlpRows ? num_tokens - from : kMlpRows;
      multiply(team_, tid, layer.gate_up, normed_.input(layer.gate_up, from), rows,
               {Output::kSiluMul, mlp_.values, mlp_.stride, d_.intermediate, layer.gate_up_bias});
      team_->barrier();
      if (layer.down.rounds()) {
        const Range part = share(rows, tid, team_->size());
        for (int64_t r = part.begin; r < part.end; r++) mlp_.round(layer.down, r);
        team_->barrier();
      }
      multiply(team_, tid, layer.down, mlp_.input(layer.down), rows,
               {Output::kAdd, residual_.row(from), residual_.stride, d_.hidden, layer.down_bias});
      team_->barrier();
    }
  }

  Team* const team_;
  const Decoder d_;
  Workspace workspace_;
  Rows residual_{}, normed_{}, qkv_{}, attended_{}, mlp_{};
};

}  // namespace inflight

using inflight::DecoderRun;

// What `decoder` points to must live as long as the run.
INFLIGHT_EXPORT int inflight_decoder_new(inflight::Team* team, const inflight::Decoder* decoder, DecoderRun** run) {
  *run = new DecoderRun(team, decoder);
  return 0;
}

INFLIGHT_EXPORT void inflight_decoder_free(DecoderRun* run) { delete run; }

// All layers for num_tokens packed tokens -> out [num_tokens, hidden], after the final norm. EINVAL: a token or a
// position that the model does not have, or a step of another team or number of tokens. ENOMEM: no memory for the
// activations.
INFLIGHT_EXPORT int inflight_decoder_forward(DecoderRun* run, inflight::AttentionStep* step, const int64_t* token_ids,
                                             const int64_t* positions, int64_t num_tokens, float* out) {
  return run->forward(step, token_ids, positions, num_tokens, out);
}

// hidden [rows, hidden] -> out [rows, vocabulary]. ENOMEM as above.
INFLIGHT_EXPORT int inflight_decoder_logits(DecoderRun* run, const float* hidden, int64_t rows, float* out) {
  return run->logits(hidden, rows, out);
}
