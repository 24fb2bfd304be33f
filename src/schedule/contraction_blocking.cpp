#include "schedule/contraction_blocking.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "cost/blocking.h"
#include "loop/loop.h"
#include "support/division.h"

namespace trainc::schedule {

using cost::BlockingVariant;
using cost::DeviceTile;
using cost::kAny;
using cost::Tile;

namespace {

std::span<const Tile> tiles_of(const Target& target) {
  return target.vector_registers == 32 ? std::span<const Tile>(cost::kAvx512Tiles)
                                       : std::span<const Tile>(cost::kAvx2Tiles);
}
std::span<const Tile> unpacked_tiles_of(const Target& target) {
  return target.vector_registers == 32 ? std::span<const Tile>(cost::kAvx512UnpackedTiles)
                                       : std::span<const Tile>(cost::kAvx2UnpackedTiles);
}

// Slots (half cycles on a machine with two FMA units) that one step of k takes a tile: its FMAs; or the four cycles
// that an FMA takes before the next on the same sum; or the loads (one a slot), which run beside the FMAs; and what it
// waits for the rhs. `block_k`: steps in a block of k.
double tile_slots(Tile t, DType dtype, const Target& target, int64_t block_k) {
  if (t.amx) {
    // Of pairs of bf16, or of f32 in parts (six products); a step is 16 pairs or 32 f32.
    const double sums = t.rows / loop::kTileSide * t.vectors, products = dtype == DType::F32 ? 6 : 1,
                 depth = dtype == DType::F32 ? 32 : 16;
    return 2 * (products * cost::kTileProduct * sums + cost::kTileLoad) / depth;
  }
  const int64_t panel = block_k * t.vectors * target.f32_lanes * 4;
  const bool waits = t.vectors >= cost::kWideTile && panel > target.caches.l1d;
  return std::max({double(t.rows * t.vectors), cost::kFmaLatency, double(t.rows + t.vectors)}) + cost::kStepOverhead +
         (waits ? cost::kWaitsForPanel * t.vectors : 0);
}

int64_t bytes_of(DType dtype) { return dtype == DType::BF16 ? 4 : size_of(dtype); }  // of a packed element: pairs
int lanes_of(DType dtype, const Target& target) { return static_cast<int>(target.f32_lanes * 4 / bytes_of(dtype)); }

// Slots that one step of k takes all tiles of m x n sums: one that is thrown away costs as much as one that is kept.
double step_slots(Tile t, int64_t m, int64_t n, DType dtype, const Target& target, int64_t block_k) {
  return double(ceil_div(m, t.rows)) * double(ceil_div(n, t.vectors * lanes_of(dtype, target))) *
         tile_slots(t, dtype, target, block_k);
}

bool in_parts(Tile t, DType dtype) { return t.amx && dtype == DType::F32; }
bool pairs_on_tiles(Tile t, DType dtype) { return t.amx && dtype == DType::BF16; }
int64_t multiplied_bytes(Tile t, DType dtype) { return in_parts(t, dtype) ? 6 : bytes_of(dtype); }

// A block of k that is made of whole runs, or that runs are made of; `otherwise` where there is none as deep as half of
// `most`.
int64_t block_of_runs(int64_t k, int64_t run, int64_t most, int64_t otherwise) {
  if (run >= k) return otherwise;
  if (run > most) {
    for (int64_t parts = ceil_div(run, most); parts <= 2 * ceil_div(run, most); ++parts)
      if (run % parts == 0) return run / parts;
    return otherwise;
  }
  const int64_t runs = ceil_div(k, run), blocks = ceil_div(runs, most / run);
  const int64_t block = ceil_div(runs, blocks) * run;
  return 2 * block >= most || blocks == 1 ? block : otherwise;
}

// All but tasks. `block_m`: relative to the usual one.
Blocking blocks_of(const ContractionShape& spec, DType dtype, const Target& target, Tile tile, double block_m) {
  Blocking b;
  b.lanes = lanes_of(dtype, target);
  b.tiles = tile.amx;
  b.tile_m = tile.rows;
  b.tile_n = tile.vectors * b.lanes;
  b.lhs_unpacked = tile.unpacked;
  // 192, in equal blocks: the order of sums that eager's own product was found to use (its error came out equal for k =
  // 256, 768, 3072; deeper blocks lose: 256 1.15 times the error, 384 1.4 times). A rhs panel of 32 f32 columns is then
  // 24 KiB, and stays in L1d. On tiles bf16 is one chain of additions, whatever the blocks, with a link for 16 pairs:
  // its blocks are as deep as L1d has room for. So are those of f32 in parts; but not where one block of the usual
  // depth does, or where the last one would hold little: partial sums come from L3 for it as well.
  const int64_t last = spec.k % cost::kBlockOfParts;
  const bool shorter = in_parts(tile, dtype) && spec.k > cost::kBlock && (last == 0 || 2 * last >= cost::kBlockOfParts);
  const int64_t most = shorter ? cost::kBlockOfParts : pairs_on_tiles(tile, dtype) ? cost::kBlockOnTiles : cost::kBlock;
  const int64_t deep = in_parts(tile, dtype) ? 2 * loop::kTileSide : 16;
  b.k_blocks = std::max<int64_t>(1, ceil_div(spec.k, most));
  b.block_k = round_up(ceil_div(spec.k, b.k_blocks), deep);
  if (!b.tiles) b.block_k = std::max<int64_t>(1, std::min(spec.k, b.block_k));
  if (!b.tiles && spec.lhs_unpacked)
    b.block_k =
        block_of_runs(spec.k, spec.lhs_unpacked->k_run / (dtype == DType::BF16 ? 2 : 1), cost::kBlock, b.block_k);
  b.k_blocks = std::max<int64_t>(1, ceil_div(spec.k, b.block_k));

  // The packed lhs block is read once a panel, while the next one is on its way to L2; with the rhs block and the
  // partial sums all should fit.
  const int64_t part = pairs_on_tiles(tile, dtype) ? cost::kLhsBlockOfL2OnTiles : cost::kLhsBlockOfL2;
  b.block_m = std::clamp<int64_t>(static_cast<int64_t>(block_m * double(target.caches.l2)) / part /
                                      (b.block_k * multiplied_bytes(tile, dtype) * b.tile_m),
                                  1, ceil_div(spec.m, b.tile_m));
  return b;
}

/// Whether the rhs is read where it lies: a single tile of rows uses each of its elements once, so that packing would
/// be as much work again. So would be packing panels into panels.
bool leaves_rhs(const ContractionShape& spec, int64_t tile_rows, int64_t tile_columns, int64_t element) {
  const bool once = spec.m <= tile_rows,
             packed = spec.rhs_in_panels && cost::kCacheLine % (tile_columns * element) == 0;
  return (once || packed) && !spec.rhs_k_contiguous && spec.rhs_run == 0;
}

/// As many as leave each asking no more than kLinesAhead lines of either operand's next block.
int64_t groups_of_asking(const Blocking& b, DType dtype, const Target& target) {
  if (b.tiles || b.room_m == 0 || b.room_n == 0) return 1;  // no tasks were found: it is not taken
  const int64_t most = target.vector_registers == 32 ? cost::kGroupsOfAskingAvx512 : cost::kGroupsOfAskingAvx2;
  const int64_t bytes_of_step = std::max(ceil_div(b.tile_m, b.room_n), ceil_div(b.tile_n, b.room_m)) * bytes_of(dtype),
                bytes_of_group = bytes_of_step * cost::kUnrolledSteps;  // to ask for while a group is multiplied
  return std::clamp<int64_t>(cost::kLinesAhead * cost::kCacheLine / bytes_of_group, 1, most);
}

Blocking finished(const ContractionShape& spec, DType dtype, const Target& target, Blocking b) {
  b.block_m = std::min(b.block_m, b.task_m);
  if (b.block_m > 0) b.block_m = ceil_div(b.task_m, ceil_div(b.task_m, b.block_m));  // equal blocks
  b.room_m = b.task_m, b.room_n = b.task_n;
  b.rhs_unpacked = !b.tiles && leaves_rhs(spec, b.tile_m, b.tile_n, bytes_of(dtype));
  b.groups_of_asking = groups_of_asking(b, dtype, target);
  return b;
}

// Those that suit the rhs's runs: a panel out of one run is one copy (a run of 0 fits all).
std::vector<Tile> tiles_for(const ContractionShape& spec, DType dtype, const Target& target) {
  const int lanes = lanes_of(dtype, target);
  std::vector<Tile> fit;
  for (Tile t : tiles_of(target))
    if (spec.rhs_run % (t.vectors * lanes) == 0) fit.push_back(t);
  if (fit.empty()) fit.assign(tiles_of(target).begin(), tiles_of(target).end());
  return fit;
}

// The tiles for an lhs that is read where it lies; none where it cannot be.
std::vector<Tile> unpacked_tiles(const ContractionShape& spec, DType dtype, const Target& target) {
  std::vector<Tile> fit;
  if (!spec.lhs_unpacked) return fit;
  const auto& lhs = *spec.lhs_unpacked;
  if (lhs.k_run < cost::kShortRun * (dtype == DType::BF16 ? 2 : 1)) return fit;
  const bool one_run = lhs.k_run == spec.k * (dtype == DType::BF16 ? 2 : 1) && lhs.row_run == spec.m;
  if (one_run && lhs.row_stride * size_of(dtype) > cost::kNearRows) return fit;
  for (Tile t : unpacked_tiles_of(target))
    if (lhs.row_run % t.rows == 0 && spec.rhs_run % (t.vectors * lanes_of(dtype, target)) == 0)
      fit.push_back({t.rows, t.vectors, false, true});
  return fit;
}

// The tiles of bf16 on AMX. The first one has a wide panel, which is worth the room in L1d where rows pass it again and
// again, in more than one block of k.
std::span<const Tile> amx_tiles_of(const ContractionShape& spec) {
  const bool wide = spec.m >= cost::kRowsOfWidePanel && spec.k > cost::kBlockOnTiles;
  return std::span(cost::kAmxTiles).subspan(wide ? 0 : 1);
}

// The tile for AMX, where multiplying on tiles takes less time than in vector registers, packing and splitting
// included. One alone: which blocks of f32 are multiplied by FMAs is a matter of its size, so that variants may not
// differ in it.
std::optional<Tile> amx_tile(const ContractionShape& spec, DType dtype, const Target& target) {
  const bool parts = dtype == DType::F32 && spec.f32_in_parts && spec.k >= cost::kShallow;
  if (!target.has_tiles || spec.k == 0 || !(dtype == DType::BF16 || parts)) return {};
  const auto products = [&](Tile t) {
    return step_slots(t, spec.m, spec.n, dtype, target, std::min(spec.k, cost::kBlock));
  };
  double least = std::numeric_limits<double>::infinity();
  for (Tile t : tiles_for(spec, dtype, target)) {
    least =
        std::min(least, products(t) + (leaves_rhs(spec, t.rows, t.vectors * lanes_of(dtype, target), bytes_of(dtype))
                                           ? 0
                                           : cost::kCopy * double(spec.n)));
  }
  std::optional<Tile> best;
  for (Tile t : parts ? std::span(&cost::kAmxTileOfParts, 1) : amx_tiles_of(spec)) {
    const double rows = double(round_up(spec.m, t.rows)),
                 columns = double(round_up(spec.n, t.vectors * lanes_of(dtype, target))),
                 split = in_parts(t, dtype) ? cost::kSplit : 0;
    const double cost = products(t) + (cost::kCopy + split) * columns + split * rows;
    if (cost < least * cost::kNearlyEqual) best = t, least = cost;
  }
  return best;
}

struct CostedBlocking {
  double cost;
  Blocking blocking;
};

// The best tasks for this tile, of a number between the two; infinite cost where there are none.
CostedBlocking choose_tasks(const ContractionShape& spec, DType dtype, const Target& target, Tile tile,
                            double least_tasks, double most_tasks, double block_m) {
  const int64_t element = bytes_of(dtype);
  Blocking b = blocks_of(spec, dtype, target, tile, block_m);
  const int64_t tiles = ceil_div(spec.m, b.tile_m), panels = ceil_div(spec.n, b.tile_n);

  // Large tasks pack less, small ones spread better over the machine's cores. The rhs block, and the next on its way,
  // should stay in L2; partial sums need not, for they are asked for long before they are read.
  const double slots =
      tile_slots(tile, dtype, target, b.block_k) / double(b.tile_m * b.tile_n);  // a sum, one step of k
  const double split = in_parts(tile, dtype) ? cost::kSplit : 0;
  const double pack_lhs =
                   tile.unpacked ? 0 : (b.tiles && !spec.lhs_k_contiguous ? cost::kTranspose : cost::kCopy) + split,
               pack_rhs = !tile.amx && leaves_rhs(spec, tile.rows, b.tile_n, element)
                              ? 0
                              : (spec.rhs_k_contiguous ? cost::kTranspose : cost::kCopy) + split;
  double best = std::numeric_limits<double>::infinity();
  for (int64_t tm = 1; tm <= std::min<int64_t>(tiles, cost::kLargestTask / b.tile_m + 1); ++tm) {
    const int64_t m_tasks = ceil_div(tiles, tm);
    if (ceil_div(tiles, m_tasks) != tm) continue;  // the same number of tasks exists with less in each
    for (int64_t tn = 1; tn <= std::min<int64_t>(panels, cost::kLargestTask / b.tile_n + 1); ++tn) {
      const int64_t n_tasks = ceil_div(panels, tn);
      if (ceil_div(panels, n_tasks) != tn) continue;
      const double rows = double(tm * b.tile_m), columns = double(tn * b.tile_n);
      const bool fits =
          (b.k_blocks == 1 || rows * columns * double(element) <= cost::kSumsOfL2 * double(target.caches.l2)) &&
          columns * double(b.block_k * multiplied_bytes(tile, dtype)) <= double(target.caches.l2) / cost::kRhsBlockOfL2;
      if (!fits && (tm > 1 || tn > 1)) continue;
      const double work = double(spec.k) * (rows * columns * slots + rows * pack_lhs + columns * pack_rhs);
      const int64_t tasks = spec.batch * m_tasks * n_tasks;
      if (double(tasks) < least_tasks || double(tasks) > most_tasks) continue;
      double cost = 0;
      for (int threads = 1; threads <= std::max(cost::kLeastCores, target.caches.cores); threads *= 2)
        cost += threads * (double(ceil_div(tasks, threads)) * work + (threads > 1 && tasks > 1 ? cost::kWake : 0));
      if (cost < best) best = cost, b.task_m = tm, b.task_n = tn, b.m_tasks = m_tasks, b.n_tasks = n_tasks;
    }
  }
  return {best, finished(spec, dtype, target, b)};
}

}  // namespace

Blocking block_part(const ContractionShape& spec, DType dtype, const Target& target, int64_t block_k) {
  Tile tile{};
  double least = std::numeric_limits<double>::infinity();
  const auto sums = [&](Tile t, int64_t m, int64_t n) {
    return step_slots(t, m, n, dtype, target, block_k ? block_k : std::min(spec.k, cost::kBlock));
  };
  // Of bf16 on tiles alone: where there are tiles, its products in vectors take longer than those of f32.
  const bool on_tiles = dtype == DType::BF16 && target.has_tiles && spec.k > 0;
  const std::vector<Tile> in_vectors = tiles_for(spec, dtype, target);
  for (Tile t : on_tiles ? amx_tiles_of(spec) : std::span(in_vectors)) {
    double cost = sums(t, spec.m, spec.n);
    for (const int64_t tenths : cost::kOtherTenths)
      cost += spec.fixed_blocking
                  ? (sums(t, spec.m * tenths / 10 + 1, spec.n) + sums(t, spec.m, spec.n * tenths / 10 + 1)) * 10 /
                        double(tenths)
                  : 0;
    if (cost < least * cost::kNearlyEqual) tile = t, least = cost;
  }
  if (Blocking* first = spec.fixed_blocking) {
    const int lanes = lanes_of(dtype, target);
    if (first->lanes != lanes || first->tiles != on_tiles)
      *first = {.lanes = lanes, .tiles = on_tiles, .tile_m = tile.rows, .tile_n = tile.vectors * lanes};
    tile = {first->tile_m, first->tile_n / first->lanes, on_tiles};
  }
  Blocking b = blocks_of(spec, dtype, target, tile, 1);
  b.task_m = ceil_div(spec.m, b.tile_m), b.task_n = ceil_div(spec.n, b.tile_n);
  b.m_tasks = b.n_tasks = 1;
  if (block_k) {
    b.block_k = block_k, b.k_blocks = ceil_div(spec.k, block_k);
    b.block_m = std::clamp<int64_t>(target.caches.l2 / cost::kLhsBlockOfL2 / (b.block_k * bytes_of(dtype) * b.tile_m),
                                    1, b.task_m);
  }
  return finished(spec, dtype, target, b);
}

Blocking choose_blocking(const ContractionShape& spec, DType dtype, const Target& target, int variant) {
  const BlockingVariant& change = cost::kVariants[variant];
  double least_tasks = 0, most_tasks = kAny;
  if (change.least_tasks > 0 || change.most_tasks < kAny) {
    const Blocking usual = choose_blocking(spec, dtype, target);
    const double tasks = double(spec.batch * usual.m_tasks * usual.n_tasks);
    least_tasks = tasks * change.least_tasks, most_tasks = tasks * change.most_tasks;
  }
  std::vector<CostedBlocking> found;
  const std::optional<Tile> amx = amx_tile(spec, dtype, target);
  std::vector<Tile> tiles = amx ? std::vector<Tile>{*amx} : tiles_for(spec, dtype, target);
  if (!amx)
    for (Tile t : unpacked_tiles(spec, dtype, target)) tiles.push_back(t);
  for (Tile t : tiles) found.push_back(choose_tasks(spec, dtype, target, t, least_tasks, most_tasks, change.block_m));
  const size_t rank = std::min(change.tile, found.size() - 1);
  for (size_t i = 0; i <= rank; ++i) {  // the earlier one where costs are equal, or nearly
    size_t best = i;
    for (size_t j = i + 1; j < found.size(); ++j)
      if (found[j].cost < found[best].cost * cost::kNearlyEqual) best = j;
    std::rotate(found.begin() + static_cast<int64_t>(i), found.begin() + static_cast<int64_t>(best),
                found.begin() + static_cast<int64_t>(best) + 1);
  }
  if (found[rank].cost == kAny) return choose_blocking(spec, dtype, target);  // there is no such number of tasks
  return found[rank].blocking;
}

Blocking fixed_blocking(const ContractionShape& spec, DType dtype, const Target& target, Blocking& first) {
  // The plans of two sizes need not have the same contractions: what was chosen for another dtype is chosen anew, as
  // the tile that is best for sizes around these, of which only some may vary.
  const bool bf16 = dtype == DType::BF16;
  if (first.room_m == 0 || first.lanes != lanes_of(dtype, target) || (first.tiles && !bf16)) {
    double least = kAny;
    std::vector<Tile> tiles = tiles_for(spec, dtype, target);
    if (bf16 && target.has_tiles) tiles.insert(tiles.end(), amx_tiles_of(spec).begin(), amx_tiles_of(spec).end());
    for (Tile t : tiles) {
      double cost = 0;
      for (const double scale : cost::kOtherSizes)
        for (const bool rows : {true, false}) {
          ContractionShape other = spec;
          (rows ? other.m : other.n) = static_cast<int64_t>(std::ceil(double(rows ? spec.m : spec.n) * scale));
          cost += choose_tasks(other, dtype, target, t, 0, kAny, 1).cost / scale;
        }
      if (cost < least * cost::kNearlyEqual)
        least = cost, first = choose_tasks(spec, dtype, target, t, 0, kAny, 1).blocking;
    }
  }
  const Tile tile{first.tile_m, first.tile_n / first.lanes, first.tiles};
  Blocking b = choose_tasks(spec, dtype, target, tile, 0, kAny, 1).blocking;
  b.block_m = first.block_m, b.room_m = first.room_m, b.room_n = first.room_n, b.rhs_unpacked = first.rhs_unpacked;
  b.groups_of_asking = first.groups_of_asking;
  const auto fit = [](int64_t tiles, int64_t& task, int64_t& tasks, int64_t room) {
    if (task <= room) return;
    tasks = ceil_div(tiles, room);
    task = ceil_div(tiles, tasks);  // equal tasks
  };
  fit(ceil_div(spec.m, b.tile_m), b.task_m, b.m_tasks, b.room_m);
  fit(ceil_div(spec.n, b.tile_n), b.task_n, b.n_tasks, b.room_n);
  return b;
}

namespace {

template <size_t N> DeviceTile choose(const DeviceTile (&tiles)[N], const ContractionShape& s, const Target& target) {
  for (const DeviceTile& t : tiles) {
    const int64_t m = ceil_div(s.m, t.m), n = ceil_div(s.n, t.n);
    const bool little_waste = m * t.m * n * t.n <= cost::kMostWaste * s.m * s.n;
    if (s.batch * m * n >= target.multiprocessors && little_waste) return t;
  }
  return tiles[N - 1];
}

}  // namespace

DeviceTile choose_device_tile(const ContractionShape& shape, const Target& target, bool tensor_cores) {
  return tensor_cores ? choose(cost::kMmaTiles, shape, target) : choose(cost::kFmaTiles, shape, target);
}

}  // namespace trainc::schedule
