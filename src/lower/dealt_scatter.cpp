// A device's scatter whose index depends on the source alone (the gradient of an embedding: a row a token). The places
// are dealt to `parts`; a block has one part and some of the columns:
//
//   for each chunk of as many sources as the block has threads
//     thread t   where source t of the chunk goes, where it is of this part; -1 where not   -> Shared
//     warp w     the largest of its threads' places                                          -> Shared
//     barrier
//     thread c   for each source of the chunk that is of this part: out[place, c] += source[c]
//     barrier
//
// So each block looks at an index once, not each of its threads. A thread passes over a warp's sources where none is of
// its part, and else reads the places of a few sources at a time from Shared memory, and passes over all of them where
// none is. Sources of a place are added in their order, by one thread.
#include <algorithm>
#include <limits>

#include "cost/loops.h"
#include "cost/sums.h"
#include "lower/kernels.h"
#include "support/division.h"

namespace trainc::lower {

using cost::kSourcesAtOnce;
using loop::integer;
using loop::LoopKind;

bool goes_by_source(const Node* scatter) {
  const Node* index = scatter->in(1);
  const int64_t axis = scatter->as<ScatterAttr>().axis;
  if (index->op != Op::Broadcast || scatter->shape()[axis] > std::numeric_limits<int32_t>::max()) return false;
  const Dims& given = index->in(0)->shape();
  for (int64_t k = 0; k < static_cast<int64_t>(given.size()); ++k)
    if (k != axis && given[k] != 1) return false;
  return true;
}

LoweredKernel lower_dealt_scatter(const Schedule& schedule, const Group& group, int64_t parts,
                                  const std::function<Stmt(Expressions&, std::vector<Expr>, const Expr&)>& add) {
  const Node* n = group.values[0];
  const auto& [axis, kind, failure] = n->as<ScatterAttr>();
  const Dims& shape = n->in(2)->shape();
  const int64_t sources = shape[axis], columns = n->in(2)->type.numel() / sources, places = n->shape()[axis];
  const int64_t threads = std::min(cost::kBlockThreads, ceil_div(columns, loop::kWarp) * loop::kWarp);
  const int64_t across = ceil_div(columns, threads);  // blocks of a part

  LoweredKernel kernel;
  loop::LoopNest& nest = kernel.nest;
  nest.name = kernel_name(group);
  nest.threads = static_cast<int>(threads);
  nest.parallel_extent = parts * across;
  Expressions e(schedule, kernel);
  e.argument(n, true);
  static_assert(loop::kWarp % kSourcesAtOnce == 0);
  const int block = nest.add_var("block", nest.parallel_extent),
            chunk = nest.add_var("chunk", ceil_div(sources, threads)), none = nest.add_var("none", threads),
            t = nest.add_var("t", threads), c = nest.add_var("c", threads),
            warp = nest.add_var("warp", threads / loop::kWarp), busy = nest.add_var("busy", 1),
            few = nest.add_var("few", loop::kWarp / kSourcesAtOnce), some = nest.add_var("some", 1),
            writer = nest.add_var("writer", threads), lane = nest.add_var("lane", 1),
            k = nest.add_var("k", kSourcesAtOnce), mine = nest.add_var("mine", 1);
  const Expr part = floor_div(nest.var(block), across), first = mod(nest.var(block), across) * threads;
  const Expr done = nest.var(chunk) * threads;
  const auto held = [&](int64_t all, const Expr& before) {  // of the last chunk fewer
    return all % threads == 0 ? integer(threads) : loop::apply(Op::Min, {integer(threads), integer(all) - before});
  };
  /// Where element `column` of source `s` lies.
  const auto at = [&](const Expr& s, Expr column) {
    std::vector<Expr> axes(shape.size());
    for (int64_t k = static_cast<int64_t>(shape.size()); k-- > 0;) {
      if (k == axis) axes[k] = s;
      else if (shape[k] == 1) axes[k] = integer(0);
      else axes[k] = mod(column, shape[k]), column = floor_div(column, shape[k]);
    }
    return axes;
  };

  std::vector<Stmt> look, sum;
  e.out = &look;
  const Expr goes =
      e.checked_index(n->in(1), Index::at_axes(shape, at(done + nest.var(t), integer(0))), places, failure);
  const Expr is_mine = loop::apply(Op::Eq, {loop::apply(Op::Mod, {goes, integer(parts)}), part});
  const int told = nest.add_local("told", DType::I32), largest = nest.add_local("largest", DType::I32);
  look.push_back(
      loop::let(told, loop::apply(Op::Select, {is_mine, loop::cast(goes, DType::I32), integer(-1, DType::I32)})));
  e.out = &sum;
  const int to = nest.add_local("to", DType::I64);
  const Expr few_of_chunk = nest.var(warp) * loop::kWarp + nest.var(few) * kSourcesAtOnce;
  const Expr s = done + few_of_chunk + nest.var(k);
  sum.push_back(add(e, at(s, first + nest.var(c)), nest.local(to)));

  // behind the arguments
  const int place = nest.add_buffer({"place", DType::I32, threads, loop::Space::Shared, true});
  const int highest = nest.add_buffer({"highest", DType::I32, threads / loop::kWarp, loop::Space::Shared, true});
  look.push_back(loop::store(place, nest.var(t), nest.local(told)));
  look.push_back(loop::reduce(largest, ReduceKind::Max, nest.local(told)));
  const auto turns = [&](int variable, const Expr& where, Stmt then) {  // the language has no `if`
    return loop::for_loop(LoopKind::Serial, variable, loop::cast(where, DType::I64), std::move(then));
  };
  Stmt walk =
      loop::block({loop::let(to, loop::cast(nest.load(place, few_of_chunk + nest.var(k)), DType::I64)),
                   turns(mine, loop::apply(Op::Le, {integer(0), nest.local(to)}), loop::block(std::move(sum)))});
  Expr any = nest.load(place, few_of_chunk);
  for (int64_t j = 1; j < kSourcesAtOnce; ++j)
    any = loop::apply(Op::Max, {any, nest.load(place, few_of_chunk + integer(j))});
  walk = turns(some, loop::apply(Op::Le, {integer(0, DType::I32), any}),
               loop::for_loop(LoopKind::Serial, k, integer(kSourcesAtOnce), std::move(walk)));
  walk = loop::for_loop(LoopKind::Serial, few, integer(loop::kWarp / kSourcesAtOnce), std::move(walk));
  walk =
      turns(busy, loop::apply(Op::Le, {integer(0, DType::I32), nest.load(highest, nest.var(warp))}), std::move(walk));
  walk = loop::for_loop(LoopKind::Serial, warp, integer(threads / loop::kWarp), std::move(walk));

  std::vector<Stmt> steps;
  if (sources % threads != 0)
    steps.push_back(loop::for_loop(LoopKind::Thread, none, integer(threads),
                                   loop::store(place, nest.var(none), integer(-1, DType::I32))));
  const Expr is_first = loop::apply(Op::Eq, {loop::mod(nest.var(writer), loop::kWarp), integer(0)});
  const Expr of_warp = floor_div(nest.var(writer), loop::kWarp);
  steps.push_back(loop::let(largest, integer(-1, DType::I32)));
  steps.push_back(loop::for_loop(LoopKind::Thread, t, held(sources, done), loop::block(std::move(look))));
  steps.push_back(loop::warp_reduce(largest, ReduceKind::Max));
  steps.push_back(loop::for_loop(LoopKind::Thread, writer, integer(threads),
                                 turns(lane, is_first, loop::store(highest, of_warp, nest.local(largest)))));
  steps.push_back(loop::barrier());
  steps.push_back(loop::for_loop(LoopKind::Thread, c, held(columns, first), std::move(walk)));
  steps.push_back(loop::barrier());
  Stmt body =
      loop::for_loop(LoopKind::Serial, chunk, integer(ceil_div(sources, threads)), loop::block(std::move(steps)));
  nest.body = loop::for_loop(LoopKind::Parallel, block, integer(nest.parallel_extent), std::move(body));
  return kernel;
}

}  // namespace trainc::lower
