#include "tiles.h"

#include <cerrno>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

using namespace inflight;

// Ask the system to let this process use tiles, for all its threads; without that the first instruction ends it. Gives
// 0 or an error number; 0 too where this variant has no tile instructions.
INFLIGHT_EXPORT int inflight_tiles_enable() {
  if (!kHasTileInstructions) return 0;
#if defined(__linux__) && defined(__x86_64__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // Linux: Documentation/arch/x86/xstate.rst
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 ? 0 : errno;
#else
  return ENOSYS;
#endif
}

// c [16][16] += one product of tiles, as the instruction gives it: bfloat16 a [16][32], b [16][16][2] and float32 c; or
// a [16][64] of int8, b [16][16][4] of uint8 and int32 c.
INFLIGHT_EXPORT void inflight_tile_multiply(int is_int8, const void* a, const void* b, void* c) {
  TileScope tiles;
  tiles.load<0>(c, 64);
  tiles.load<1>(a, 64);
  tiles.load<2>(b, 64);
  if (is_int8) {
    tiles.multiply_int8<0, 1, 2>();
  } else {
    tiles.multiply_bf16<0, 1, 2>();
  }
  tiles.store<0>(c, 64);
}
