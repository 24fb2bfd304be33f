#include "loop/contraction_blocking.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace trainc::loop {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

struct Tile { int rows, vectors; bool amx = false; };

// rows * vectors sums, `vectors` of the rhs and one broadcast of the lhs live in registers: at most 32 (AVX-512) or 16 (AVX2).
// Ordered by preference where the costs are equal: 8 x 3 loads 11 vectors for 24 FMAs, 12 x 2 loads 14.
const std::vector<Tile>& tiles_of(CpuLevel level) {
  static const std::vector<Tile> avx512 = {{8, 3}, {12, 2}, {6, 4}, {8, 2}, {4, 4}, {24, 1}, {16, 1}, {8, 1}, {2, 8}, {2, 4}, {2, 2}, {1, 8}, {1, 4}, {1, 2}};
  static const std::vector<Tile> avx2 = {{6, 2}, {4, 3}, {3, 4}, {12, 1}, {8, 1}, {4, 2}, {2, 4}, {2, 2}, {1, 8}, {1, 4}, {1, 2}};
  return f32_lanes(level) == 16 ? avx512 : avx2;
}

// As many tiles of 16 x 16 down and across: their sums and a row and a column of operands are eight registers at most.
constexpr Tile kAmx[] = {{32, 2, true}, {16, 3, true}, {48, 1, true}, {16, 2, true}, {32, 1, true}, {16, 1, true}};

// Slots (half cycles on a machine with two FMA units) that one step of k takes a tile: its FMAs; or the four cycles that an FMA takes
// before the next on the same sum; or the loads (one a slot), which run beside the FMAs.
double tile_slots(Tile t) { return std::max({double(t.rows * t.vectors), 8.0, double(t.rows + t.vectors)}) + 1.0; }

// The same for AMX, of pairs of bf16, or of f32 in parts (six products): 16 cycles a product of two tiles, 52 until the next on the same sums, 8 a tile load. A step is
// 16 pairs or 32 f32. By the instruction's published timing: no such machine was at hand.
double amx_slots(Tile t, DType dtype) {
  const double down = t.rows / kTileSide, across = t.vectors, products = dtype == DType::F32 ? 6 : 1, depth = dtype == DType::F32 ? 32 : 16;
  return 2 * (products * std::max({16 * down * across, 52.0, 8 * (down + across)}) + 8) / depth;
}
// FMA slots to pack an element out of L2: a copy along the contiguous direction, or a transpose through a staging tile.
constexpr double kCopy = 0.4, kTranspose = 0.7;
// The same to split a packed element into its three parts.
constexpr double kSplit = 2.2;

bool on_tiles(const ContractionSpec& spec, DType dtype, CpuLevel level) {
  return has_tiles(level) && spec.k > 0 && (dtype == DType::BF16 || (dtype == DType::F32 && spec.f32_in_parts));
}

Tile choose_tile(const ContractionSpec& spec, DType dtype, CpuLevel level, int lanes) {
  Tile best{};
  double best_cost = std::numeric_limits<double>::infinity();
  const bool fits_runs = std::any_of(tiles_of(level).begin(), tiles_of(level).end(), [&](Tile t) { return spec.rhs_run % (t.vectors * lanes) == 0; });
  for (Tile t : tiles_of(level)) {
    if (fits_runs && spec.rhs_run % (t.vectors * lanes) != 0) continue;  // a panel out of one run is one copy (a run of 0 fits all)
    double count = double(ceil_div(spec.m, t.rows)) * double(ceil_div(spec.n, t.vectors * lanes));
    // A sum that is computed and thrown away costs as much as one that is kept.
    double cost = count * tile_slots(t);
    if (cost < best_cost * 0.999) best = t, best_cost = cost;
  }
  if (!on_tiles(spec, dtype, level)) return best;
  // The rhs of few rows is read in place, if it is not for tiles; f32 is split.
  if (ceil_div(spec.m, best.rows) > 1 || spec.rhs_k_contiguous) best_cost += kCopy * double(spec.n);
  const double prepare = dtype == DType::F32 ? kCopy + kSplit : kCopy;
  for (Tile t : kAmx) {
    const double down = double(ceil_div(spec.m, t.rows)), across = double(ceil_div(spec.n, t.vectors * lanes));
    const double cost = down * across * amx_slots(t, dtype) + prepare * across * t.vectors * lanes + (prepare - kCopy) * down * t.rows;
    if (cost < best_cost * 0.999) best = t, best_cost = cost;
  }
  return best;
}

// Waking threads costs about this many slots.
constexpr double kWake = 10000;

}  // namespace

Blocking choose_blocking(const ContractionSpec& spec, DType dtype, CpuLevel level, const CacheSizes& cache) {
  const int64_t element = dtype == DType::BF16 ? 4 : size_of(dtype);  // bytes; of a pair
  Blocking b;
  b.lanes = static_cast<int>(f32_lanes(level) * 4 / element);
  const Tile tile = choose_tile(spec, dtype, level, b.lanes);
  b.tiles = tile.amx;
  b.tile_m = tile.rows;
  b.tile_n = tile.vectors * b.lanes;
  b.fma_rows = tile.amx ? 8 : b.tile_m;  // at most 8 x 3 vectors

  // 192, in equal blocks: the order of sums that eager's library was found to use (its error came out equal for k = 256, 768, 3072; deeper
  // blocks lose: 256 1.15 times the error, 384 1.4 times). A rhs panel of 32 f32 columns is then 24 KiB, and stays in L1d.
  // On tiles a chain of additions has a link for 16 pairs only, and the end of a block costs more beside its products: bf16 takes twice the depth.
  const int64_t kBlock = b.tiles && dtype == DType::BF16 ? 384 : 192;
  const int64_t deep = !b.tiles ? 16 : dtype == DType::BF16 ? kTileSide : 2 * kTileSide;
  b.k_blocks = std::max<int64_t>(1, ceil_div(spec.k, kBlock));
  b.block_k = round_up(ceil_div(spec.k, b.k_blocks), deep);
  if (!b.tiles) b.block_k = std::max<int64_t>(1, std::min(spec.k, b.block_k));
  b.k_blocks = std::max<int64_t>(1, ceil_div(spec.k, b.block_k));

  // The packed lhs block is read once a panel, while the next one is on its way to L2; with the rhs block and the partial sums all should fit.
  const int64_t tiles = ceil_div(spec.m, b.tile_m), panels = ceil_div(spec.n, b.tile_n);
  const bool parts = b.tiles && dtype == DType::F32;
  const int64_t bytes = parts ? 6 : element;  // of an element that is multiplied
  b.block_m = std::clamp<int64_t>(cache.l2 / 10 / (b.block_k * bytes * b.tile_m), 1, tiles);

  // Large tasks pack less, small ones spread better over the machine's cores. The rhs block, and the next on its way, should stay in L2; partial
  // sums need not, for they are asked for long before they are read.
  const double step = b.tiles ? double(b.tile_m * b.tile_n) / amx_slots(tile, dtype) : double(b.lanes);  // sums a slot
  const double split = parts ? kSplit : 0;
  const double pack_lhs = (b.tiles && !spec.lhs_k_contiguous ? kTranspose : kCopy) + split, pack_rhs = (spec.rhs_k_contiguous ? kTranspose : kCopy) + split;
  double best = std::numeric_limits<double>::infinity();
  for (int64_t tm = 1; tm <= std::min<int64_t>(tiles, 2048 / b.tile_m + 1); ++tm) {
    const int64_t m_tasks = ceil_div(tiles, tm);
    if (ceil_div(tiles, m_tasks) != tm) continue;  // the same number of tasks exists with less in each
    for (int64_t tn = 1; tn <= std::min<int64_t>(panels, 2048 / b.tile_n + 1); ++tn) {
      const int64_t n_tasks = ceil_div(panels, tn);
      if (ceil_div(panels, n_tasks) != tn) continue;
      const double rows = double(tm * b.tile_m), columns = double(tn * b.tile_n);
      const bool fits = (b.k_blocks == 1 || rows * columns * double(element) <= 2 * double(cache.l2)) && columns * double(b.block_k * bytes) <= double(cache.l2) / 2;
      if (!fits && (tm > 1 || tn > 1)) continue;
      const double work = double(spec.k) * (rows * columns / step + rows * pack_lhs + columns * pack_rhs);
      const int64_t tasks = spec.batch * m_tasks * n_tasks;
      double cost = 0;
      for (int threads = 1; threads <= std::max(2, cache.cores); threads *= 2) cost += threads * (double(ceil_div(tasks, threads)) * work + (threads > 1 && tasks > 1 ? kWake : 0));
      if (cost < best) best = cost, b.task_m = tm, b.task_n = tn, b.m_tasks = m_tasks, b.n_tasks = n_tasks;
    }
  }
  b.block_m = std::min(b.block_m, b.task_m);
  b.block_m = ceil_div(b.task_m, ceil_div(b.task_m, b.block_m));  // equal blocks
  return b;
}

}  // namespace trainc::loop
