// Matrix tiles without the instructions, to the same bits: part of kernels/tiles.h in the variant for tests.

class TileScope {
 public:
  TileScope() = default;
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;

  template <int TILE>
  void zero() {
    memset(tiles_[TILE], 0, sizeof tiles_[TILE]);
  }
  template <int TILE>
  void load(const void* from, int64_t stride) {
    for (int row = 0; row < kTileHeight; row++)
      memcpy(tiles_[TILE][row], static_cast<const uint8_t*>(from) + row * stride, 64);
  }
  template <int TILE>
  void store(void* to, int64_t stride) {
    for (int row = 0; row < kTileHeight; row++)
      memcpy(static_cast<uint8_t*>(to) + row * stride, tiles_[TILE][row], 64);
  }
  template <int C, int A, int B>
  void multiply_bf16() {
    multiply_bf16(tiles_[C], tiles_[A], tiles_[B]);
  }
  template <int C, int A, int B>
  void multiply_int8() {
    multiply_int8(tiles_[C], tiles_[A], tiles_[B]);
  }

 private:
  using Tile = uint32_t[kTileHeight][16];

  static void multiply_bf16(Tile& c, const Tile& a, const Tile& b) {
    const FlushDenormals flush;
    for (int row = 0; row < kTileHeight; row++)
      for (int column = 0; column < 16; column += kLanes) {
        TwoChains chains;
        for (int k = 0; k < 16; k++) {
          const u32v x = splat(a[row][k]), w = inflight::load<u32v>(&b[k][column]);
          chains.add(widen_first(x), widen_second(x), widen_first(w), widen_second(w));
        }
        inflight::store(&c[row][column], chains.onto(inflight::load<f32v>(&c[row][column])));
      }
  }

  static void multiply_int8(Tile& c, const Tile& a, const Tile& b) {
    for (int row = 0; row < kTileHeight; row++)
      for (int column = 0; column < 16; column += kLanes) {
        i32v sum = inflight::load<i32v>(&c[row][column]);
        for (int k = 0; k < 16; k++)
          sum = dot_i8(sum, inflight::load<u8v>(&b[k][column]), (u8v)splat(a[row][k]));
        inflight::store(&c[row][column], sum);
      }
  }

  alignas(kCacheLine) Tile tiles_[8] = {};
};
