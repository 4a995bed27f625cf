// A decoder of the Llama family: its sizes and weights.
#pragma once

#include <cstdint>

#include "matrix.h"

namespace inflight {

// A layer, which execution/cpu_decoder.py fills in this order. Biases are padded to whole panels; null: none.
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

}  // namespace inflight
