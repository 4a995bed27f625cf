// The forward pass of a decoder of the Llama family, all layers in one parallel region: `models/llama.py` is its
// reference. Activations and sums are float32; weights and the KV cache have formats of their own.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <numeric>
#include <vector>

#include "attention.h"
#include "decoder.h"
#include "decoder_rows.h"
#include "gemm.h"
#include "matrix.h"
#include "team.h"

namespace inflight {

namespace {

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
  DecoderRun(Team* team, const Decoder* decoder) : team_(team), d_(*decoder), threads_(team->size()) {}

  int forward(AttentionStep* step, const int64_t* token_ids, const int64_t* positions, int64_t num_tokens,
              const int64_t* sampled, int64_t num_sampled, float* out) {
    if (!fits(step, team_, num_tokens)) return EINVAL;
    for (int64_t t = 0; t < num_tokens; t++) {
      if (token_ids[t] < 0 || token_ids[t] >= d_.embedding.outputs) return EINVAL;
      if (positions[t] < 0 || positions[t] >= d_.num_positions) return EINVAL;
    }
    if (sampled == nullptr && num_sampled != 0 && num_sampled != num_tokens) return EINVAL;
    for (int64_t i = 0; sampled != nullptr && i < num_sampled; i++)
      if (sampled[i] < 0 || sampled[i] >= num_tokens) return EINVAL;
    if (num_tokens == 0) return 0;
    const Division all(num_tokens, team_->size()), last(num_sampled, team_->size());
    if (const int error = reserve(all, last)) return error;
    step_ = step;
    positions_ = positions;
    const Rows& kept = sampled == nullptr ? residual_ : sampled_;
    team_->run([&](int tid) {
      const Range tokens = share(num_tokens, tid, team_->size()), rows = share(num_sampled, tid, team_->size());
      for (int64_t t = tokens.begin; t < tokens.end; t++) d_.embedding.read_row(token_ids[t], residual_[t]);
      team_->barrier();
      for (int64_t i = 0; i < d_.num_layers; i++) {
        each_part(all, tid, [&](const Part& part) {
          if (i > 0) after_attention(d_.layers[i - 1], part, residual_, nullptr);
          before_attention(d_.layers[i], int(i), part);
        });
        team_->barrier();
        const bool is_last = i + 1 == d_.num_layers;
        if (is_last && num_sampled == 0) return;
        for (int64_t r = rows.begin; is_last && sampled != nullptr && r < rows.end; r++)
          memcpy(sampled_[r], residual_[sampled[r]], d_.hidden * sizeof(float));
        attend(step, int(i), qkv_.values, qkv_.stride, attended_.values, attended_.stride, tid);
        team_->barrier();
      }
      each_part(last, tid, [&](const Part& part) { after_attention(d_.layers[d_.num_layers - 1], part, kept, sampled); });
      team_->barrier();
      for (int64_t r = rows.begin; r < rows.end; r++)
        rms_norm(kept[r], d_.final_norm, d_.hidden, d_.eps, out + r * d_.hidden);
    });
    return 0;
  }

  int logits(const float* hidden, int64_t rows, float* out) {
    if (rows == 0) return 0;
    const Matrix& head = d_.head;
    InputRows rounded{};
    const int error = workspace_.reserve([&] {
      if (head.rounds()) rounded.take(&workspace_, head, rows);
    });
    if (error != 0) return error;
    const Input input = head.rounds() ? rounded.input() : Input{hidden, d_.hidden, nullptr, nullptr, nullptr, rows};
    team_->run([&](int tid) {
      if (head.rounds()) {
        const Range mine = share(rows, tid, team_->size());
        for (int64_t r = mine.begin; r < mine.end; r++) rounded.round(head, r, hidden + r * d_.hidden, {0, d_.hidden});
        team_->barrier();
      }
      multiply(head, input, {0, rows}, share(head.num_panels(), tid, team_->size()),
               {Output::kStore, out, head.outputs, head.outputs, nullptr});
    });
    return 0;
  }

 private:
  // Private to a thread. Where threads divide the columns, all use the first one's `mlp`, and beyond few rows also its
  // `normed` and `mixed`.
  struct Thread {
    InputRows normed;  // of hidden columns
    InputRows mixed;   // what attention gives
    float* row;        // a row before it is rounded
    Rows activated;    // before it is rounded; products round to bfloat16 themselves
    InputRows mlp;
  };

  int reserve(const Division& all, const Division& last) {
    const Layer& any = d_.layers[0];
    return workspace_.reserve([&] {
      residual_.take(&workspace_, all.count, d_.hidden);
      sampled_.take(&workspace_, last.count, d_.hidden);
      qkv_.take(&workspace_, all.count, qkv_columns());
      attended_.take(&workspace_, all.count, any.output.inputs);
      for (size_t i = 0; i < threads_.size(); i++) {
        const auto most = [&](bool shared_all, bool shared_last) {
          return std::max(i > 0 && shared_all ? 0 : all.most_rows, i > 0 && shared_last ? 0 : last.most_rows);
        };
        const int64_t rows = most(all.shares_inputs(), last.shares_inputs()), mlp_rows = most(!all.by_rows, !last.by_rows);
        threads_[i].normed.take(&workspace_, any.qkv, rows);
        threads_[i].mixed.take(&workspace_, any.output, rows);
        threads_[i].row = workspace_.take<float>(padded(d_.hidden));
        threads_[i].mlp.take(&workspace_, any.down, mlp_rows);
        threads_[i].activated = threads_[i].mlp.exact;
        if (any.down.quantized()) threads_[i].activated.take(&workspace_, mlp_rows, d_.intermediate);
      }
    });
  }

  int64_t qkv_columns() const { return (d_.num_heads + 2 * d_.num_kv_heads) * d_.head_dim; }

  template <class Function>
  void each_part(const Division& division, int tid, const Function& fn) {
    if (!division.by_rows) return fn(Part{division, {0, division.count}, tid, team_->size()});
    for (int block; (block = team_->take()) < division.num_blocks;)
      if (const Part part{division, division.block(block, step_), tid, team_->size()}; part.count() > 0) fn(part);
  }

  // A product is complete: threads that divide its columns wait for each other.
  void complete(const Part& part) {
    if (!part.alone()) team_->barrier();
  }

  // The inputs of a product of the part's rows. make(row, space) gives a row, which may lie in `space`.
  template <class Make>
  Input prepare(const Part& part, const Matrix& m, InputRows Thread::* rows, const Make& make) {
    const bool shared = part.division.shares_inputs();
    const InputRows& to = threads_[shared ? 0 : part.tid].*rows;
    const Range mine = shared ? share(part.count(), part.tid, part.num_threads) : Range{0, part.count()};
    for (int64_t r = mine.begin; r < mine.end; r++) {
      float* space = m.rounds() ? threads_[part.tid].row : to.exact[r];
      const float* row = make(part.rows.begin + r, space);
      if (m.rounds()) {
        to.round(m, r, row, {0, m.inputs});
      } else if (row != space) {
        memcpy(space, row, m.inputs * sizeof(float));
      }
    }
    if (shared) team_->barrier();
    return to.input();
  }

  Input prepare_normed(const Part& part, const Matrix& m, const Rows& residual, const float* weight) {
    return prepare(part, m, &Thread::normed, [&](int64_t row, float* space) {
      rms_norm(residual[row], weight, d_.hidden, d_.eps, space);
      return space;
    });
  }

  void product(const Part& part, const Matrix& m, const Input& x, Range panels, const Output& out) {
    multiply(m, x, {0, part.count()}, panels, out);
  }

  // A thread computes whole heads, and so rotates them and writes their keys and values without waiting.
  void before_attention(const Layer& layer, int index, const Part& part) {
    const Input normed = prepare_normed(part, layer.qkv, residual_, layer.input_norm);
    const Range panels = part.panels(layer.qkv, std::lcm(d_.head_dim, int64_t(kPanel)) / kPanel);
    product(part, layer.qkv, normed, panels,
            {Output::kStore, qkv_[part.rows.begin], qkv_.stride, qkv_columns(), layer.qkv_bias});
    const int64_t first = panels.begin * kPanel / d_.head_dim;
    const int64_t end = std::min(panels.end * kPanel, qkv_columns()) / d_.head_dim;
    const int64_t first_key = d_.num_heads, first_value = d_.num_heads + d_.num_kv_heads;
    for (int64_t t = part.rows.begin; t < part.rows.end; t++)
      for (int64_t h = first; h < end; h++) {
        float* head = qkv_[t] + h * d_.head_dim;
        if (h >= first_value) {
          write_value(step_, index, t, h - first_value, head);
          continue;
        }
        const float* norm = h < first_key ? layer.query_norm : layer.key_norm;
        if (norm != nullptr) rms_norm(head, norm, d_.head_dim, d_.eps, head);
        rotate(head, d_.rotation + positions_[t] * d_.head_dim, d_.head_dim);
        if (h >= first_key) write_key(step_, index, t, h - first_key, head);
      }
  }

  // token: of each row; null: row i is token i. `residual` has the part's rows.
  void after_attention(const Layer& layer, const Part& part, const Rows& residual, const int64_t* token) {
    const auto attended_row = [&](int64_t row, float*) { return attended_[token == nullptr ? row : token[row]]; };
    const bool as_it_lies = token == nullptr && !layer.output.rounds();
    const Input mixed = as_it_lies ? Input{attended_[part.rows.begin], attended_.stride, nullptr, nullptr, nullptr, 0}
                                   : prepare(part, layer.output, &Thread::mixed, attended_row);
    const auto add = [&](const Matrix& m, const Input& x, const float* bias) {
      product(part, m, x, part.panels(m), {Output::kAdd, residual[part.rows.begin], residual.stride, d_.hidden, bias});
      complete(part);
    };
    add(layer.output, mixed, layer.output_bias);
    const Input normed = prepare_normed(part, layer.gate_up, residual, layer.mlp_norm);
    add(layer.down, gated(layer, part, normed), layer.down_bias);
  }

  // The inputs of the last product of a layer. A thread computes whole groups of them, and so rounds without waiting.
  Input gated(const Layer& layer, const Part& part, const Input& normed) {
    const Matrix& down = layer.down;
    const Thread& to = threads_[part.alone() ? part.tid : 0];
    const Range panels = part.panels(layer.gate_up, down.quantized() ? std::max(1, down.group() / kLanes) : 1);
    const bool rounds_at_once = down.rounds() && !down.quantized();
    product(part, layer.gate_up, normed, panels,
            {Output::kSiluMul, to.activated.values, to.activated.stride, d_.intermediate, layer.gate_up_bias,
             rounds_at_once ? reinterpret_cast<uint16_t*>(to.mlp.rounded) : nullptr});
    const Range columns{panels.begin * kLanes, std::min(panels.end * kLanes, d_.intermediate)};
    for (int64_t r = 0; down.quantized() && r < part.count(); r++) to.mlp.round(down, r, to.activated[r], columns);
    complete(part);
    return to.mlp.input();
  }

  Team* const team_;
  const Decoder d_;
  Workspace workspace_;
  Rows residual_{}, sampled_{}, qkv_{}, attended_{};
  std::vector<Thread> threads_;
  const AttentionStep* step_ = nullptr;
  const int64_t* positions_ = nullptr;
};

}  // namespace inflight

using inflight::DecoderRun;

// Pointers in `decoder` must stay valid as long as the run.
INFLIGHT_EXPORT int inflight_decoder_new(inflight::Team* team, const inflight::Decoder* decoder, DecoderRun** run) {
  *run = new DecoderRun(team, decoder);
  return 0;
}

INFLIGHT_EXPORT void inflight_decoder_free(DecoderRun* run) { delete run; }

// All layers for num_tokens packed tokens -> out [num_sampled, hidden], after the final norm: of the tokens `sampled`
// [num_sampled]; where it is null, of all in order (num_sampled is num_tokens) or of none (0). EINVAL: a token or a
// position that the model does not have, a sampled token that the step does not have, another number of rows for null,
// or a step of another team or number of tokens. ENOMEM: no memory for the activations.
INFLIGHT_EXPORT int inflight_decoder_forward(DecoderRun* run, inflight::AttentionStep* step, const int64_t* token_ids,
                                             const int64_t* positions, int64_t num_tokens, const int64_t* sampled,
                                             int64_t num_sampled, float* out) {
  return run->forward(step, token_ids, positions, num_tokens, sampled, num_sampled, out);
}

// hidden [rows, hidden] -> out [rows, vocabulary]. ENOMEM as above.
INFLIGHT_EXPORT int inflight_decoder_logits(DecoderRun* run, const float* hidden, int64_t rows, float* out) {
  return run->logits(hidden, rows, out);
}
