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

// FMA slots to pack an element out of L2: a copy along the contiguous direction, or a transpose through a staging tile.
constexpr double kCopy = 0.4, kTranspose = 0.7;
// Waking threads costs about this many slots.
constexpr double kWake = 10000;

// What a variant asks for: the tile by rank, the number of tasks relative to the default's, the m block likewise.
struct Wish { size_t tile; double least_tasks, most_tasks, block_m; };
constexpr double kAny = std::numeric_limits<double>::infinity();
constexpr Wish kWishes[kBlockingVariants] = {{0, 0, kAny, 1},   {1, 0, kAny, 1},   {2, 0, kAny, 1}, {0, 1.5, 3, 1}, {0, 3.5, 8, 1},
                                             {0, 0, 0.7, 1}, {0, 0, kAny, 0.5}, {0, 0, kAny, 2}, {1, 1.5, 3, 1}};

// All but tasks. `block_m`: relative to the usual one.
Blocking blocks_of(const ContractionSpec& spec, DType dtype, CpuLevel level, const CacheSizes& cache, Tile tile, double block_m) {
  const int64_t element = size_of(dtype);
  Blocking b;
  b.lanes = static_cast<int>(f32_lanes(level) * 4 / element);
  b.tile_m = tile.rows;
  b.tile_n = tile.vectors * b.lanes;

  // 192, in equal blocks: the order of sums that eager's library was found to use (its error came out equal for k = 256, 768, 3072; deeper
  // blocks lose: 256 1.15 times the error, 384 1.4 times). A rhs panel of 32 f32 columns is then 24 KiB, and stays in L1d.
  b.k_blocks = std::max<int64_t>(1, ceil_div(spec.k, kBlock));
  b.block_k = std::max<int64_t>(1, std::min(spec.k, round_up(ceil_div(spec.k, b.k_blocks), 16)));
  b.k_blocks = std::max<int64_t>(1, ceil_div(spec.k, b.block_k));

  // The packed lhs block is read once a panel, while the next one is on its way to L2; with the rhs block and the partial sums all should fit.
  b.block_m = std::clamp<int64_t>(static_cast<int64_t>(block_m * double(cache.l2)) / 10 / (b.block_k * element * b.tile_m), 1, ceil_div(spec.m, b.tile_m));
  return b;
}

Blocking finished(const ContractionSpec& spec, Blocking b) {
  b.block_m = std::min(b.block_m, b.task_m);
  if (b.block_m > 0) b.block_m = ceil_div(b.task_m, ceil_div(b.task_m, b.block_m));  // equal blocks
  b.room_m = b.task_m, b.room_n = b.task_n;
  // A single tile of rows uses each element of the rhs once: packing would be as much work again.
  b.in_place = ceil_div(spec.m, b.tile_m) == 1 && !spec.rhs_k_contiguous && spec.rhs_run == 0;
  return b;
}

// Those that suit the rhs's runs: a panel out of one run is one copy (a run of 0 fits all).
std::vector<Tile> tiles_for(const ContractionSpec& spec, DType dtype, CpuLevel level) {
  const int lanes = static_cast<int>(f32_lanes(level) * 4 / size_of(dtype));
  std::vector<Tile> fit;
  for (Tile t : tiles_of(level))
    if (spec.rhs_run % (t.vectors * lanes) == 0) fit.push_back(t);
  return fit.empty() ? tiles_of(level) : fit;
}

struct Costed { double cost; Blocking blocking; };

// The best tasks for this tile, of a number between the two; infinite cost where there are none.
Costed choose_tasks(const ContractionSpec& spec, DType dtype, CpuLevel level, const CacheSizes& cache, Tile tile, double least_tasks, double most_tasks, double block_m) {
  const int64_t element = size_of(dtype);
  Blocking b = blocks_of(spec, dtype, level, cache, tile, block_m);
  const int64_t tiles = ceil_div(spec.m, b.tile_m), panels = ceil_div(spec.n, b.tile_n);

  // Large tasks pack less, small ones spread better over the machine's cores. The rhs block, and the next on its way, should stay in L2; partial
  // sums need not, for they are asked for long before they are read.
  const double slots = tile_slots(tile) / double(b.tile_m * b.tile_n);  // a sum, one step of k
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
      const double work = double(spec.k) * (rows * columns * slots + rows * pack_lhs + columns * pack_rhs);
      const int64_t tasks = spec.batch * m_tasks * n_tasks;
      if (double(tasks) < least_tasks || double(tasks) > most_tasks) continue;
      double cost = 0;
      for (int threads = 1; threads <= std::max(2, cache.cores); threads *= 2) cost += threads * (double(ceil_div(tasks, threads)) * work + (threads > 1 && tasks > 1 ? kWake : 0));
      if (cost < best) best = cost, b.task_m = tm, b.task_n = tn, b.m_tasks = m_tasks, b.n_tasks = n_tasks;
    }
  }
  return {best, finished(spec, b)};
}

}  // namespace

Blocking block_part(const ContractionSpec& spec, DType dtype, CpuLevel level, const CacheSizes& cache, int64_t block_k) {
  Tile tile{};
  double least = std::numeric_limits<double>::infinity();
  const auto sums = [&](Tile t, int64_t m, int64_t n) {  // a sum that is computed and thrown away costs as much as one that is kept
    return double(ceil_div(m, t.rows)) * double(ceil_div(n, t.vectors * f32_lanes(level) * 4 / size_of(dtype))) * tile_slots(t);
  };
  for (Tile t : tiles_for(spec, dtype, level)) {
    double cost = sums(t, spec.m, spec.n);
    for (const int64_t tenths : {7, 13, 15}) cost += spec.pinned ? (sums(t, spec.m * tenths / 10 + 1, spec.n) + sums(t, spec.m, spec.n * tenths / 10 + 1)) * 10 / double(tenths) : 0;
    if (cost < least * 0.999) tile = t, least = cost;
  }
  if (Blocking* first = spec.pinned) {
    const int lanes = static_cast<int>(f32_lanes(level) * 4 / size_of(dtype));
    if (first->lanes != lanes) *first = {.lanes = lanes, .tile_m = tile.rows, .tile_n = tile.vectors * lanes};
    tile = {first->tile_m, first->tile_n / first->lanes};
  }
  Blocking b = blocks_of(spec, dtype, level, cache, tile, 1);
  b.task_m = ceil_div(spec.m, b.tile_m), b.task_n = ceil_div(spec.n, b.tile_n);
  b.m_tasks = b.n_tasks = 1;
  if (block_k) {
    b.block_k = block_k, b.k_blocks = ceil_div(spec.k, block_k);
    b.block_m = std::clamp<int64_t>(cache.l2 / 10 / (b.block_k * size_of(dtype) * b.tile_m), 1, b.task_m);
  }
  return finished(spec, b);
}

Blocking choose_blocking(const ContractionSpec& spec, DType dtype, CpuLevel level, const CacheSizes& cache, int variant) {
  const Wish& wish = kWishes[variant];
  double least_tasks = 0, most_tasks = kAny;
  if (wish.least_tasks > 0 || wish.most_tasks < kAny) {
    const Blocking usual = choose_blocking(spec, dtype, level, cache);
    const double tasks = double(spec.batch * usual.m_tasks * usual.n_tasks);
    least_tasks = tasks * wish.least_tasks, most_tasks = tasks * wish.most_tasks;
  }
  std::vector<Costed> found;
  for (Tile t : tiles_for(spec, dtype, level)) found.push_back(choose_tasks(spec, dtype, level, cache, t, least_tasks, most_tasks, wish.block_m));
  const size_t rank = std::min(wish.tile, found.size() - 1);
  for (size_t i = 0; i <= rank; ++i) {  // the earlier one where costs are equal, or nearly
    size_t best = i;
    for (size_t j = i + 1; j < found.size(); ++j)
      if (found[j].cost < found[best].cost * 0.999) best = j;
    std::rotate(found.begin() + static_cast<int64_t>(i), found.begin() + static_cast<int64_t>(best), found.begin() + static_cast<int64_t>(best) + 1);
  }
  if (found[rank].cost == kAny) return choose_blocking(spec, dtype, level, cache);  // there is no such number of tasks
  return found[rank].blocking;
}

Blocking pinned_blocking(const ContractionSpec& spec, DType dtype, CpuLevel level, const CacheSizes& cache, Blocking& first) {
  // The plans of two sizes need not have the same contractions: what was made for another kind is made anew.
  if (first.room_m == 0 || first.lanes != f32_lanes(level) * 4 / size_of(dtype)) {  // the tile that is best for sizes around these, of which only some may vary
    double least = kAny;
    for (Tile t : tiles_for(spec, dtype, level)) {
      double cost = 0;
      for (const double scale : {0.75, 1.0, 1.25, 1.5})
        for (const bool rows : {true, false}) {
          ContractionSpec other = spec;
          (rows ? other.m : other.n) = static_cast<int64_t>(std::ceil(double(rows ? spec.m : spec.n) * scale));
          cost += choose_tasks(other, dtype, level, cache, t, 0, kAny, 1).cost / scale;
        }
      if (cost < least * 0.999) least = cost, first = choose_tasks(spec, dtype, level, cache, t, 0, kAny, 1).blocking;
    }
  }
  Blocking b = choose_tasks(spec, dtype, level, cache, {first.tile_m, first.tile_n / first.lanes}, 0, kAny, 1).blocking;
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
