// Constructors of statements.
#include "loop/loop.h"

namespace trainc::loop {
namespace {

StmtNode node(StmtKind kind) {
  StmtNode n{};
  n.kind = kind;
  return n;
}
Stmt share(StmtNode n) { return std::make_shared<const StmtNode>(std::move(n)); }

// Transpose or Copy: what lies at an index of the source goes to an index of the buffer.
StmtNode moved(StmtKind kind, const char* what, int buffer, Expr index, int source, Expr source_index, int lanes) {
  require(index && index->dtype == DType::I64 && source_index && source_index->dtype == DType::I64,
          std::string(what) + ": an index is not i64");
  StmtNode n = node(kind);
  n.buffer = buffer;
  n.index = std::move(index);
  n.source = source;
  n.value = std::move(source_index);
  n.lanes = lanes;
  return n;
}

}  // namespace

Stmt block(std::vector<Stmt> body) {
  for (const Stmt& s : body) require(s != nullptr, "block: a null statement");
  StmtNode n = node(StmtKind::Block);
  n.body = std::move(body);
  return share(std::move(n));
}

Stmt for_loop(LoopKind loop, int var, Expr extent, Stmt body, int lanes) {
  require(extent && extent->dtype == DType::I64, "for_loop: the extent is not i64");
  require(body != nullptr, "for_loop: no body");
  StmtNode n = node(StmtKind::For);
  n.loop = loop;
  n.var = var;
  n.extent = std::move(extent);
  n.lanes = lanes;
  n.body = {std::move(body)};
  return share(std::move(n));
}

Stmt store(int buffer, Expr index, Expr value) {
  require(index && index->dtype == DType::I64 && value, "store: the index is not i64, or no value");
  StmtNode n = node(StmtKind::Store);
  n.buffer = buffer;
  n.index = std::move(index);
  n.value = std::move(value);
  return share(std::move(n));
}

Stmt let(int local, Expr value) {
  require(value != nullptr, "let: no value");
  StmtNode n = node(StmtKind::Let);
  n.local = local;
  n.value = std::move(value);
  return share(std::move(n));
}

Stmt reduce(int local, ReduceKind combine, Expr value) {
  require(value != nullptr, "reduce: no value");
  StmtNode n = node(StmtKind::Reduce);
  n.local = local;
  n.combine = combine;
  n.value = std::move(value);
  return share(std::move(n));
}

Stmt check(Expr ok, int code) {
  require(ok && ok->dtype == DType::Bool, "check: the condition is not bool");
  StmtNode n = node(StmtKind::Check);
  n.value = std::move(ok);
  n.code = code;
  return share(std::move(n));
}

Stmt prefetch(int buffer, Expr index, int level) {
  require(index && index->dtype == DType::I64, "prefetch: the index is not i64");
  StmtNode n = node(StmtKind::Prefetch);
  n.buffer = buffer;
  n.index = std::move(index);
  n.level = level;
  return share(std::move(n));
}

Stmt transpose(int buffer, Expr index, int64_t pitch, int source, Expr source_index, int64_t source_pitch, int lanes) {
  StmtNode n =
      moved(StmtKind::Transpose, "transpose", buffer, std::move(index), source, std::move(source_index), lanes);
  n.pitch = pitch;
  n.source_pitch = source_pitch;
  return share(std::move(n));
}

Stmt tile_zero(int tile) {
  StmtNode n = node(StmtKind::TileZero);
  n.buffer = tile;
  return share(std::move(n));
}

Stmt tile_load(int tile, int source, Expr source_index, int64_t source_pitch) {
  require(source_index && source_index->dtype == DType::I64, "tile_load: the index is not i64");
  StmtNode n = node(StmtKind::TileLoad);
  n.buffer = tile;
  n.source = source;
  n.value = std::move(source_index);
  n.source_pitch = source_pitch;
  return share(std::move(n));
}

Stmt tile_dot(int sums, int a, int b) {
  StmtNode n = node(StmtKind::TileDot);
  n.buffer = sums;
  n.source = a;
  n.other = b;
  return share(std::move(n));
}

Stmt tile_store(int buffer, Expr index, int64_t pitch, int tile) {
  require(index && index->dtype == DType::I64, "tile_store: the index is not i64");
  StmtNode n = node(StmtKind::TileStore);
  n.buffer = buffer;
  n.index = std::move(index);
  n.pitch = pitch;
  n.source = tile;
  return share(std::move(n));
}

Stmt barrier() { return share(node(StmtKind::Barrier)); }

Stmt warp_reduce(int local, ReduceKind combine) {
  StmtNode n = node(StmtKind::WarpReduce);
  n.local = local;
  n.combine = combine;
  return share(std::move(n));
}

Stmt mma(int sums, Expr index, Expr a, Expr b) {
  require(index && index->dtype == DType::I64, "mma: the index is not i64");
  require(a && b && a->kind == ExprKind::Load && b->kind == ExprKind::Load, "mma: an operand is not a load");
  StmtNode n = node(StmtKind::Mma);
  n.buffer = sums;
  n.index = std::move(index);
  n.value = std::move(a);
  n.second = std::move(b);
  return share(std::move(n));
}

Stmt copy(int buffer, Expr index, int source, Expr source_index, int lanes) {
  return share(moved(StmtKind::Copy, "copy", buffer, std::move(index), source, std::move(source_index), lanes));
}

Stmt copy_async(int buffer, Expr index, int source, Expr source_index, int lanes, Expr guard) {
  require(!guard || guard->dtype == DType::Bool, "copy_async: the guard is not bool");
  StmtNode n =
      moved(StmtKind::CopyAsync, "copy_async", buffer, std::move(index), source, std::move(source_index), lanes);
  n.second = std::move(guard);
  return share(std::move(n));
}

Stmt commit_copies() { return share(node(StmtKind::CommitCopies)); }

Stmt wait_copies(int groups) {
  StmtNode n = node(StmtKind::WaitCopies);
  n.code = groups;
  return share(std::move(n));
}

Stmt load_matrix(int buffer, Expr index, int source, Expr source_index, bool transposed) {
  StmtNode n = moved(StmtKind::LoadMatrix, "load_matrix", buffer, std::move(index), source, std::move(source_index), 1);
  n.transposed = transposed;
  return share(std::move(n));
}

}  // namespace trainc::loop
