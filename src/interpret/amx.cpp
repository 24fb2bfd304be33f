#include "interpret/amx.h"

#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <cstring>

#include "interpret/value.h"
#include "support/cpu.h"

namespace trainc::interpret {
namespace {

// One set of tile registers a thread.
struct Tiles {
  bool configured = false;
  uint8_t bytes[8][16 * 64] = {};
};
thread_local Tiles tiles;
std::atomic<int64_t> instructions{0};

// An instruction: VEX (3 bytes), opcode, ModRM, then SIB and displacement where it names memory.
struct TileInstruction {
  int prefix = 0, opcode = 0, reg = 0, second = 0, rm = 0;  // second: VEX.vvvv
  bool memory = false;
  uint8_t* address = nullptr;  // without the index
  int64_t index = 0;           // scaled: the bytes from row to row
  int length = 0;
};

int64_t register_value(const ucontext_t& context, int number) {
  constexpr int order[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                             REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  return context.uc_mcontext.gregs[order[number]];
}

bool decode(const ucontext_t& context, TileInstruction& in) {
  const auto* at = reinterpret_cast<const uint8_t*>(context.uc_mcontext.gregs[REG_RIP]);
  if (at[0] != 0xC4 || (at[1] & 0x1F) != 2 || (at[2] & 0x84) != 0) return false;  // map 0F38, W0, 128 bits
  const int r = at[1] & 0x80 ? 0 : 8, x = at[1] & 0x40 ? 0 : 8, b = at[1] & 0x20 ? 0 : 8;
  in.prefix = at[2] & 3;  // none, 66, F3, F2
  in.second = ~(at[2] >> 3) & 15;
  in.opcode = at[3];
  const int mode = at[4] >> 6;
  in.reg = (at[4] >> 3 & 7) + r;
  in.rm = (at[4] & 7) + b;
  in.length = 5;
  in.memory = mode != 3;
  if (!in.memory) return true;
  int64_t base = 0;
  bool wide = mode == 2, none = false;
  if ((at[4] & 7) == 4) {
    const int scale = at[5] >> 6, index = (at[5] >> 3 & 7) + x, low = at[5] & 7;
    in.length = 6;
    if (index != 4) in.index = register_value(context, index) << scale;
    none = low == 5 && mode == 0;
    if (!none) base = register_value(context, low + b);
  } else if ((at[4] & 7) == 5 && mode == 0) {  // from the next instruction on
    none = true;
    base = context.uc_mcontext.gregs[REG_RIP] + in.length + 4;
  } else {
    base = register_value(context, in.rm);
  }
  wide |= none;
  if (wide) {
    int32_t displacement;
    std::memcpy(&displacement, at + in.length, 4);
    base += displacement, in.length += 4;
  } else if (mode == 1) {
    base += static_cast<int8_t>(at[in.length]), in.length += 1;
  }
  in.address = reinterpret_cast<uint8_t*>(base);
  return true;
}

bool carry_out(const TileInstruction& in) {
  enum { kNone, k66, kF3, kF2 };
  if (in.opcode == 0x49 && in.prefix == kNone && in.memory) {  // ldtilecfg: our one shape
    for (int tile = 0; tile < 8; ++tile)
      if (in.address[0] != 1 || in.address[16 + 2 * tile] != 64 || in.address[17 + 2 * tile] != 0 ||
          in.address[48 + tile] != 16)
        return false;
    tiles = {.configured = true};
    return true;
  }
  if (!tiles.configured || in.reg > 7) return false;
  uint8_t* tile = tiles.bytes[in.reg];
  if (in.opcode == 0x49 && in.prefix == kNone) return tiles = {}, true;  // tilerelease
  // tilezero
  if (in.opcode == 0x49 && in.prefix == kF2 && !in.memory) return std::memset(tile, 0, sizeof tiles.bytes[0]), true;
  if (in.opcode == 0x4B && in.prefix == kF2 && in.memory) {  // tileloadd
    for (int row = 0; row < 16; ++row) std::memcpy(tile + 64 * row, in.address + row * in.index, 64);
    return true;
  }
  if (in.opcode == 0x4B && in.prefix == kF3 && in.memory) {  // tilestored
    for (int row = 0; row < 16; ++row) std::memcpy(in.address + row * in.index, tile + 64 * row, 64);
    return true;
  }
  if (in.opcode == 0x5C && in.prefix == kF3 && !in.memory && in.rm < 8 && in.second < 8)  // tdpbf16ps
    return tile_dot(tile, tiles.bytes[in.rm], tiles.bytes[in.second]), true;
  return false;
}

void on_refused(int, siginfo_t*, void* raw) {
  auto& context = *static_cast<ucontext_t*>(raw);
  TileInstruction in;
  if (!decode(context, in) || !carry_out(in)) {
    signal(SIGILL, SIG_DFL);  // the instruction is met again, and ends the process
    return;
  }
  ++instructions;
  context.uc_mcontext.gregs[REG_RIP] += in.length;
}

}  // namespace

int64_t emulated_instructions() { return instructions; }

bool emulate_amx() {
  if (has_tiles(machine_cpu_level())) return true;
  if (!has_bf16_dot(machine_cpu_level())) return false;
  struct sigaction action = {};
  action.sa_sigaction = &on_refused;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  if (sigaction(SIGILL, &action, nullptr) != 0) return false;
  set_machine_cpu_level(CpuLevel::Amx);
  return true;
}

}  // namespace trainc::interpret
