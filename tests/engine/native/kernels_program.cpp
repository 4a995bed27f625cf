// Calls a library of CPU kernels, for machines on which the tests in Python do not run. Numbers are float32, on
// standard input and output.
//
//   PROGRAM LIBRARY product FORMAT OUTPUTS INPUTS ROWS
//       weights [OUTPUTS, INPUTS] and x [ROWS, INPUTS] -> the weights as the packed matrix has them; x times those; and
//       the same again, each row alone.
//   PROGRAM LIBRARY decoder FORMAT TOKENS...
//       -> the logits of a sequence in a model of random weights, computed in chunks of so many tokens.
//   PROGRAM LIBRARY gain
//       -> what the library gains by bfloat16, and whether the system refuses it tiles.
//
// FORMAT is a number of `Format` in matrix.h.
#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "attention.h"
#include "decoder.h"

using inflight::Chunk;
using inflight::Decoder;
using inflight::Format;
using inflight::KVCache;
using inflight::Layer;
using inflight::Matrix;
using Floats = std::vector<float>;

namespace {

void* library;

void require(bool holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "error: %s\n", what);
  exit(1);
}

// A function of the library.
template <class Result = int, class... Arguments>
Result call(const char* name, Arguments... arguments) {
  auto function = reinterpret_cast<Result (*)(Arguments...)>(dlsym(library, name));
  require(function != nullptr, name);
  return function(arguments...);
}

template <class... Arguments>
void run(const char* name, Arguments... arguments) {
  require(call(name, arguments...) == 0, name);
}

Floats read(size_t count) {
  Floats values(count);
  require(fread(values.data(), sizeof(float), count, stdin) == count, "too few numbers");
  return values;
}

void write(const Floats& values) {
  require(fwrite(values.data(), sizeof(float), values.size(), stdout) == values.size(), "writing");
}

void* new_team() {
  void* team = nullptr;
  run("inflight_team_new", 2, &team);
  return team;
}

Matrix allocate(Format format, int64_t outputs, int64_t inputs) {
  const auto bytes = call<int64_t>("inflight_matrix_bytes", int(format), outputs, inputs);
  auto* memory = static_cast<uint8_t*>(call<void*>("inflight_allocate", bytes));
  require(memory != nullptr, "no memory");
  return {format, 0, outputs, inputs, memory};
}

void pack(void* team, const Matrix& m, const Floats& weights, int64_t first = 0, bool interleaved = false) {
  const int64_t count = int64_t(weights.size()) / m.inputs;
  run("inflight_matrix_pack", team, &m, static_cast<const void*>(weights.data()), 0, count, first, int(interleaved));
}

void product(Format format, int64_t outputs, int64_t inputs, int64_t rows) {
  void* team = new_team();
  const Matrix m = allocate(format, outputs, inputs);
  pack(team, m, read(outputs * inputs));
  const Floats x = read(rows * inputs);

  std::vector<int64_t> every(outputs);
  for (int64_t i = 0; i < outputs; i++) every[i] = i;
  Floats kept(outputs * inputs), together(rows * outputs), alone(rows * outputs);
  run("inflight_matrix_rows", &m, static_cast<const int64_t*>(every.data()), outputs, kept.data());
  run("inflight_matmul", team, &m, x.data(), rows, together.data());
  for (int64_t r = 0; r < rows; r++)
    run("inflight_matmul", team, &m, x.data() + r * inputs, int64_t(1), &alone[r * outputs]);
  write(kept);
  write(together);
  write(alone);
}

constexpr int64_t kHidden = 70, kIntermediate = 90, kLayers = 2, kHeads = 4, kKVHeads = 2, kHeadDim = 16;
constexpr int64_t kPositions = 128, kVocabulary = 40, kBlock = 16;

// Weights at random; what is pointed to stays until the program ends.
class Model {
 public:
  Model(void* team, Format format) : team_(team) {
    const bool quantized = format == Format::int8 || format == Format::int4;
    const int64_t lanes = call<int>("inflight_lanes"), gate_up = (kIntermediate + lanes - 1) / lanes * 2 * lanes;
    for (Layer& layer : layers_) {
      layer = {};
      layer.input_norm = norm();
      layer.qkv = linear(format, (kHeads + 2 * kKVHeads) * kHeadDim, kHidden);
      layer.output = linear(format, kHidden, kHeads * kHeadDim);
      layer.mlp_norm = norm();
      layer.gate_up = allocate(format, gate_up, kHidden);
      for (int part = 0; part < 2; part++) pack(team, layer.gate_up, numbers(kIntermediate, kHidden), part, true);
      layer.down = linear(format, kHidden, kIntermediate);
    }
    for (int64_t position = 0; position < kPositions; position++)
      for (int64_t i = 0; i < kHeadDim; i++) {
        const double angle = double(position) * std::pow(10000.0, -double(i % (kHeadDim / 2)) / (kHeadDim / 2));
        rotation_.push_back(float(i < kHeadDim / 2 ? std::cos(angle) : std::sin(angle)));
      }
    const Matrix head = linear(quantized ? Format::int8 : format, kVocabulary, kHidden);
    decoder = {kHidden, kIntermediate, kLayers, kHeads,  kKVHeads, kHeadDim,        kPositions,
               1e-5f,   head,          head,    layers_, norm(),   rotation_.data()};
  }

  Decoder decoder;

 private:
  Floats numbers(int64_t outputs, int64_t inputs) {
    Floats values(outputs * inputs);
    for (float& x : values) x = float(double(random_()) / 4294967296.0 - 0.5) * 4 / std::sqrt(float(inputs));
    return values;
  }
  const float* norm() {
    kept_.push_back(std::make_unique<Floats>(numbers(kHidden, 1)));
    for (float& x : *kept_.back()) x = 1 + x / 4;
    return kept_.back()->data();
  }
  Matrix linear(Format format, int64_t outputs, int64_t inputs) {
    const Matrix m = allocate(format, outputs, inputs);
    pack(team_, m, numbers(outputs, inputs));
    return m;
  }

  void* const team_;
  std::mt19937 random_{1};
  Layer layers_[kLayers];
  Floats rotation_;
  std::vector<std::unique_ptr<Floats>> kept_;
};

void decode(Format format, const std::vector<int64_t>& chunks) {
  void *team = new_team(), *step = nullptr, *decoder = nullptr;
  const Model model(team, format);
  run("inflight_decoder_new", team, &model.decoder, &decoder);
  const int64_t element_bytes = format == Format::bfloat16 ? 2 : 4, windows[kLayers] = {0, 24};
  const int64_t cache_bytes = kLayers * kPositions * 2 * kKVHeads * kHeadDim * element_bytes;
  auto* memory = static_cast<uint8_t*>(call<void*>("inflight_allocate", cache_bytes));
  require(memory != nullptr, "no memory");
  const KVCache cache{memory,   kLayers,       kPositions / kBlock, kBlock, kHeads, kKVHeads,
                      kHeadDim, element_bytes, windows,             0.25f,  0};
  run("inflight_attention_new", &cache, team, &step);

  int64_t ids[kPositions], positions[kPositions], blocks[kPositions / kBlock];
  for (int64_t i = 0; i < kPositions; i++) ids[i] = i * 7 % kVocabulary, positions[i] = i;
  for (int64_t i = 0; i < kPositions / kBlock; i++) blocks[i] = i;
  int64_t start = 0;
  for (const int64_t count : chunks) {
    require(start + count <= kPositions, "too many tokens");
    const Chunk chunk{0, count, start, blocks};
    const int64_t* none = nullptr;
    const int64_t* slots = positions + start;
    const int64_t zero = 0, one = 1;
    call<void>("inflight_attention_prepare", step, count, slots, zero, none, zero, none, one, &chunk);
    Floats hidden(count * kHidden), logits(count * kVocabulary);
    run("inflight_decoder_forward", decoder, step, ids + start, positions + start, count, none, count, hidden.data());
    run("inflight_decoder_logits", decoder, static_cast<const float*>(hidden.data()), count, logits.data());
    write(logits);
    start += count;
  }
}

}  // namespace

int main(int argc, char** argv) {
  require(argc > 2, "see the beginning of the source");
  library = dlopen(argv[1], RTLD_NOW);
  require(library != nullptr, dlerror());
  std::vector<int64_t> numbers;
  for (int i = 3; i < argc; i++) numbers.push_back(atoll(argv[i]));
  if (strcmp(argv[2], "gain") == 0) {
    write({float(call<double>("inflight_bf16_gain")), float(call("inflight_tiles_enable"))});
  } else if (strcmp(argv[2], "decoder") == 0) {
    require(numbers.size() > 1, "decoder FORMAT TOKENS...");
    decode(Format(numbers[0]), {numbers.begin() + 1, numbers.end()});
  } else {
    require(numbers.size() == 4, "product FORMAT OUTPUTS INPUTS ROWS");
    product(Format(numbers[0]), numbers[1], numbers[2], numbers[3]);
  }
  return 0;
}
