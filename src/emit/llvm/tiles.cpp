// AMX: tile registers by number, as the nest names them. All have one shape, which stands beside the code as a
// constant.
#include "emit/llvm/printer.h"
#include "llvm/IR/IntrinsicsX86.h"
#include "support/error.h"

namespace trainc::emit {
using llvm::Value;
using loop::Space;
using loop::StmtKind;

bool Printer::has_tile_buffers() const {
  for (const loop::Buffer& b : nest_.buffers)
    if (b.space == Space::Tile) return true;
  return false;
}

Value* Printer::tile_number(int buffer) {
  uint8_t number = 0;
  for (int i = 0; i < buffer; ++i) number += nest_.buffers[static_cast<size_t>(i)].space == Space::Tile;
  return b_.getInt8(number);
}

// ldtilecfg's 64 bytes: palette 1; from byte 16 on the bytes of each register's rows, two bytes a register; from byte
// 48 on their number.
void Printer::configure_tiles() {
  require(has_tiles(b_.level),
          "emit: " + nest_.name + " uses tile registers, which level " + std::string(name_of(b_.level)) + " has not");
  std::vector<uint8_t> bytes(64, 0);
  bytes[0] = 1;
  for (size_t tile = 0; tile < loop::kTileRegisters; ++tile)
    bytes[16 + 2 * tile] = 4 * loop::kTileSide, bytes[48 + tile] = loop::kTileSide;
  auto* shapes = new llvm::GlobalVariable(module_, llvm::ArrayType::get(b_.getInt8Ty(), 64), true,
                                          llvm::GlobalValue::PrivateLinkage,
                                          llvm::ConstantDataArray::get(context_, bytes), "tile_shapes");
  shapes->setAlignment(llvm::Align(64));
  b_.CreateIntrinsic(llvm::Intrinsic::x86_ldtilecfg, {}, {shapes});
}

void Printer::release_tiles() { b_.CreateIntrinsic(llvm::Intrinsic::x86_tilerelease, {}, {}); }

void Printer::tile(const loop::StmtNode& n) {
  const auto memory = [&](int buffer, const loop::Expr& index) {
    return address(storage_[static_cast<size_t>(buffer)], scalar(index), true);
  };
  const auto pitch = [&](int buffer, int64_t elements) {
    return b_.getInt64(static_cast<uint64_t>(elements * size_of(nest_.buffers[static_cast<size_t>(buffer)].dtype)));
  };
  switch (n.kind) {
    case StmtKind::TileZero: b_.CreateIntrinsic(llvm::Intrinsic::x86_tilezero, {}, {tile_number(n.buffer)}); return;
    case StmtKind::TileLoad:
      b_.CreateIntrinsic(llvm::Intrinsic::x86_tileloadd64, {},
                         {tile_number(n.buffer), memory(n.source, n.value), pitch(n.source, n.source_pitch)});
      return;
    case StmtKind::TileDot:
      b_.CreateIntrinsic(llvm::Intrinsic::x86_tdpbf16ps, {},
                         {tile_number(n.buffer), tile_number(n.source), tile_number(n.other)});
      return;
    case StmtKind::TileStore:
      b_.CreateIntrinsic(llvm::Intrinsic::x86_tilestored64, {},
                         {tile_number(n.source), memory(n.buffer, n.index), pitch(n.buffer, n.pitch)});
      return;
    default: throw InternalError("emit: not a tile statement");
  }
}

}  // namespace trainc::emit
