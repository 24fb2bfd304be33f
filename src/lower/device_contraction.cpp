#include "lower/device_contraction.h"

#include "lower/device_block.h"

namespace trainc::lower {

using schedule::choose_device_tile;
namespace {

// By FMA. The nest:
//
//   parallel block (batch, m tile, n tile)
//     sums = 0
//     for k tile
//       thread: both operands' tiles into Shared memory, zeros beyond the edges
//       barrier
//       thread: sums += tile of the lhs * tile of the rhs
//       barrier
//     thread: epilogue over the sums that exist
class FmaBuilder : DeviceBlock {
 public:
  FmaBuilder(LoopNest& nest, const ContractionSpec& spec, const DeviceTile& tile, DType dtype)
      : DeviceBlock(nest, spec, tile), dtype_(dtype) {
    nest_.threads = t_.m / t_.each_m * (t_.n / t_.each_n);
    pitch_lhs_ = t_.m + cost::kFmaPad;
    pitch_rhs_ = t_.n + cost::kFmaPad;
    lhs_ = buffer("lhs_tile", dtype_, t_.k * pitch_lhs_, Space::Shared);
    rhs_ = buffer("rhs_tile", dtype_, t_.k * pitch_rhs_, Space::Shared);
    sums_ = buffer("sums", dtype_, static_cast<int64_t>(t_.each_m) * t_.each_n, Space::Register);
    a_ = buffer("a", dtype_, t_.each_m, Space::Register);
    b_ = buffer("b", dtype_, t_.each_n, Space::Register);
  }

  void run() {
    over_blocks([&] {
      std::vector<Stmt> body = {zero(sums_)};
      if (spec_.k > 0)
        body.push_back(loop(LoopKind::Serial, "k_tile", ceil_div(spec_.k, t_.k), [&](const Expr& k_tile) {
          const Expr first_k = k_tile * t_.k;
          return block({fill(true, first_k), fill(false, first_k), barrier(), multiply(), barrier()});
        }));
      body.push_back(finish());
      return body;
    });
  }

 private:
  // An operand's tile, read along the direction in which it is contiguous; neighbouring threads read neighbours.
  Stmt fill(bool left, const Expr& first_k) {
    const int64_t rows = left ? t_.m : t_.n;
    const bool along_k = left ? spec_.lhs_k_contiguous : spec_.rhs_k_contiguous;
    return loop(LoopKind::Thread, "element", rows * t_.k, [&](const Expr& e) {
      const Expr row = along_k ? floor_div(e, t_.k) : mod(e, rows), k = along_k ? mod(e, t_.k) : floor_div(e, rows);
      return store(left ? lhs_ : rhs_, k * (left ? pitch_lhs_ : pitch_rhs_) + row,
                   element(left, first_row(left) + row, first_k + k, dtype_, t_.k));
    });
  }

  // A thread's rows and columns are spread over the tile: neighbouring threads hold neighbouring columns.
  int64_t down() const { return t_.m / t_.each_m; }    // threads a column of the tile
  int64_t across() const { return t_.n / t_.each_n; }  // threads a row

  Stmt multiply() {
    return threads([&](const Expr& thread) {
      const Expr y = floor_div(thread, across()), x = mod(thread, across());
      return loop(LoopKind::Serial, "k", t_.k, [&](const Expr& k) {
        return block({
            loop(LoopKind::Unroll, "i", t_.each_m,
                 [&](const Expr& i) { return store(a_, i, nest_.load(lhs_, k * pitch_lhs_ + y + i * down())); }),
            loop(LoopKind::Unroll, "j", t_.each_n,
                 [&](const Expr& j) { return store(b_, j, nest_.load(rhs_, k * pitch_rhs_ + x + j * across())); }),
            loop(LoopKind::Unroll, "i", t_.each_m,
                 [&](const Expr& i) {
                   return loop(LoopKind::Unroll, "j", t_.each_n, [&](const Expr& j) {
                     const Expr at = i * t_.each_n + j;
                     return store(sums_, at, fma(nest_.load(a_, i), nest_.load(b_, j), nest_.load(sums_, at)));
                   });
                 }),
        });
      });
    });
  }

  Stmt finish() {
    return threads([&](const Expr& thread) {
      const Expr y = floor_div(thread, across()), x = mod(thread, across());
      return loop(LoopKind::Unroll, "i", t_.each_m, [&](const Expr& i) {
        return loop(LoopKind::Unroll, "j", t_.each_n, [&](const Expr& j) {
          return epilogue(first_m_ + y + i * down(), first_n_ + x + j * across(), nest_.load(sums_, i * t_.each_n + j));
        });
      });
    });
  }

  const DType dtype_;
  int64_t pitch_lhs_ = 0, pitch_rhs_ = 0;
  int lhs_ = -1, rhs_ = -1, sums_ = -1, a_ = -1, b_ = -1;
};

}  // namespace

void build_device_contraction(LoopNest& nest, const ContractionSpec& spec, const Target& target, bool tf32) {
  require(spec.batch >= 0 && spec.m >= 0 && spec.n >= 0 && spec.k >= 0, "contraction of negative size");
  nest.flops += 2 * spec.batch * spec.m * spec.n * spec.k;
  if (spec.batch == 0 || spec.m == 0 || spec.n == 0) {
    nest.parallel_extent = 1;
    nest.threads = kWarp;
    nest.body = block({});
    return;
  }
  // The dtype of the sums is the operands'; asked with coordinates that exist, or are not read (k = 0).
  const Expr lhs = spec.lhs(integer(0), integer(0), integer(0)), rhs = spec.rhs(integer(0), integer(0), integer(0));
  const DType sums = lhs->dtype;
  require(sums == DType::F32 || sums == DType::F64,
          "contraction of " + std::string(name_of(sums)) + " operands: cast them to f32");
  const bool bf16 = narrow(lhs) && narrow(rhs), mma = bf16 || (tf32 && sums == DType::F32);
  const DeviceTile tile = choose_device_tile(shape_of(spec), target, mma);
  if (mma) build_mma_contraction(nest, spec, tile, bf16 ? DType::BF16 : DType::F32);
  else FmaBuilder(nest, spec, tile, sums).run();
}

}  // namespace trainc::lower
