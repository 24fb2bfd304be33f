#include "loop/contraction_blocking.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace trainc::loop {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

struct Tile { int rows, vectors; };

// rows * vectors sums, `vectors` of the rhs and one broadcast of the lhs live in registers: at most 32 (AVX-512) or 16 (AVX2).
// Ordered by preference where the costs are equal: 8 x 3 loads 11 vectors for 24 FMAs, 12 x 2 loads 14.
const std::vector<Tile>& tiles_of(CpuLevel level) {
  static const std::vector<Tile> avx512 = {{8, 3}, {12, 2}, {6, 4}, {8, 2}, {4, 4}, {24, 1}, {16, 1}, {8, 1}, {2, 8}, {2, 4}, {2, 2}, {1, 8}, {1, 4}, {1, 2}};
  static const std::vector<Tile> avx2 = {{6, 2}, {4, 3}, {3, 4}, {12, 1}, {8, 1}, {4, 2}, {2, 4}, {2, 2}, {1, 8}, {1, 4}, {1, 2}};
  return f32_lanes(level) == 16 ? avx512 : avx2;
}

// Slots (half cycles on a machine with two FMA units) that one step of k takes a tile: its FMAs; or the four cycles that an FMA takes
// before the next on the same sum; or the loads (one a slot), which run beside the FMAs.
double tile_slots(Tile t) { return std::max({double(t.rows * t.vectors), 8.0, double(t.rows + t.vectors)}) + 1.0; }

// Sums that tiles compute for m rows and n columns, the thrown-away ones included.
double sums(Tile t, int lanes, double m, double n) { return std::ceil(m / t.rows) * std::ceil(n / (t.vectors * lanes)); }

Tile choose_tile(const ContractionSpec& spec, CpuLevel level, int lanes) {
  Tile best{};
  double best_cost = std::numeric_limits<double>::infinity();
  const bool fits_runs = std::any_of(tiles_of(level).begin(), tiles_of(level).end(), [&](Tile t) { return spec.rhs_run % (t.vectors * lanes) == 0; });
  for (Tile t : tiles_of(level)) {
    if (fits_runs && spec.rhs_run % (t.vectors * lanes) != 0) continue;  // a panel out of one run is one copy (a run of 0 fits all)
    // A sum that is computed and thrown away costs as much as one that is kept.
    double cost = 0;
    if (!spec.pinned) cost = sums(t, lanes, double(spec.m), double(spec.n)) * tile_slots(t);
    else  // sizes like these, of which only some may vary
      for (const double scale : {0.75, 1.0, 1.25, 1.5})
        cost += (sums(t, lanes, std::ceil(double(spec.m) * scale), double(spec.n)) + sums(t, lanes, double(spec.m), std::ceil(double(spec.n) * scale))) * tile_slots(t) / scale;
    if (cost < best_cost * 0.999) best = t, best_cost = cost;
  }
  return best;
}

// FMA slots to pack an element out of L2: a copy along the contiguous direction, or a transpose through a staging tile.
constexpr double kCopy = 0.4, kTranspose = 0.7;
// Waking threads costs about this many slots.
constexpr double kWake = 10000;

}  // namespace

namespace {

/// Everything but the tile.
Blocking blocking_of(const ContractionSpec& spec, DType dtype, Tile tile, int lanes, const CacheSizes& cache) {
  const int64_t element = size_of(dtype);
  Blocking b;
  b.lanes = lanes;
  b.tile_m = tile.rows;
  b.tile_n = tile.vectors * b.lanes;

  // 192, in equal blocks: the order of sums that eager's library was found to use (its error came out equal for k = 256, 768, 3072; deeper
  // blocks lose: 256 1.15 times the error, 384 1.4 times). A rhs panel of 32 f32 columns is then 24 KiB, and stays in L1d.
  b.k_blocks = std::max<int64_t>(1, ceil_div(spec.k, kBlock));
  b.block_k = std::max<int64_t>(1, std::min(spec.k, round_up(ceil_div(spec.k, b.k_blocks), 16)));
  b.k_blocks = std::max<int64_t>(1, ceil_div(spec.k, b.block_k));

  // The packed lhs block is read once a panel, while the next one is on its way to L2; with the rhs block and the partial sums all should fit.
  const int64_t tiles = ceil_div(spec.m, b.tile_m), panels = ceil_div(spec.n, b.tile_n);
  b.block_m = std::clamp<int64_t>(cache.l2 / 10 / (b.block_k * element * b.tile_m), 1, tiles);

  // Large tasks pack less, small ones spread better over the machine's cores. The rhs block, and the next on its way, should stay in L2; partial
  // sums need not, for they are asked for long before they are read.
  const double step = double(b.lanes);
  const double pack_lhs = kCopy, pack_rhs = spec.rhs_k_contiguous ? kTranspose : kCopy;
  double best = std::numeric_limits<double>::infinity();
  for (int64_t tm = 1; tm <= std::min<int64_t>(tiles, 2048 / b.tile_m + 1); ++tm) {
    const int64_t m_tasks = ceil_div(tiles, tm);
    if (ceil_div(tiles, m_tasks) != tm) continue;  // the same number of tasks exists with less in each
    for (int64_t tn = 1; tn <= std::min<int64_t>(panels, 2048 / b.tile_n + 1); ++tn) {
      const int64_t n_tasks = ceil_div(panels, tn);
      if (ceil_div(panels, n_tasks) != tn) continue;
      const double rows = double(tm * b.tile_m), columns = double(tn * b.tile_n);
      const bool fits = (b.k_blocks == 1 || rows * columns * double(element) <= 2 * double(cache.l2)) && columns * double(b.block_k * element) <= double(cache.l2) / 2;
      if (!fits && (tm > 1 || tn > 1)) continue;
      const double work = double(spec.k) * (rows * columns / step + rows * pack_lhs + columns * pack_rhs);
      const int64_t tasks = spec.batch * m_tasks * n_tasks;
      double cost = 0;
      for (int threads = 1; threads <= std::max(2, cache.cores); threads *= 2) cost += threads * (double(ceil_div(tasks, threads)) * work + (threads > 1 && tasks > 1 ? kWake : 0));
      if (cost < best) best = cost, b.task_m = tm, b.task_n = tn, b.m_tasks = m_tasks, b.n_tasks = n_tasks;
    }
  }
  // A single tile of rows uses each element of the rhs once: packing would be as much work again.
  b.in_place = tiles == 1 && !spec.rhs_k_contiguous && spec.rhs_run == 0;
  b.block_m = std::min(b.block_m, b.task_m);
  b.block_m = ceil_div(b.task_m, ceil_div(b.task_m, b.block_m));  // equal blocks
  b.room_m = b.task_m, b.room_n = b.task_n;
  return b;
}

}  // namespace

Blocking choose_blocking(const ContractionSpec& spec, DType dtype, CpuLevel level, const CacheSizes& cache) {
  const int lanes = static_cast<int>(f32_lanes(level) * 4 / size_of(dtype));
  return blocking_of(spec, dtype, choose_tile(spec, level, lanes), lanes, cache);
}

Blocking pinned_blocking(const ContractionSpec& spec, DType dtype, CpuLevel level, const CacheSizes& cache, Blocking& first) {
  if (first.lanes == 0) first = choose_blocking(spec, dtype, level, cache);
  Blocking b = blocking_of(spec, dtype, {first.tile_m, first.tile_n / first.lanes}, first.lanes, cache);
  b.block_m = first.block_m, b.room_m = first.room_m, b.room_n = first.room_n, b.in_place = first.in_place;
  const auto fit = [](int64_t tiles, int64_t& task, int64_t& tasks, int64_t room) {
    if (task <= room) return;
    tasks = ceil_div(tiles, room);
    task = ceil_div(tiles, tasks);  // equal tasks
  };
  fit(ceil_div(spec.m, b.tile_m), b.task_m, b.m_tasks, b.room_m);
  fit(ceil_div(spec.n, b.tile_n), b.task_n, b.n_tasks, b.room_n);
  return b;
}

}  // namespace trainc::loop
