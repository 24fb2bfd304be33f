// Reads what print.cpp writes: one statement a line, blocks by indentation, infix operators by text.h's levels.
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <map>

#include "loop/text.h"

namespace trainc::loop {
namespace {

struct Line {
  int number;
  size_t depth;
  std::string_view text;
};

bool is_word_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; }

class Parser {
 public:
  explicit Parser(std::string_view text) {
    for (int number = 1; !text.empty(); ++number) {
      const size_t end = std::min(text.find('\n'), text.size());
      const std::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      const size_t start = line.find_first_not_of(' ');
      if (start != std::string_view::npos) lines_.push_back({number, start, line.substr(start)});
    }
  }

  LoopNest run() {
    while (!done() && !at_line("body:")) head();
    if (done()) fail("no body");
    for (const auto& [buffer, name] : over_) {
      if (!buffers_.contains(name)) fail(fmt::format("'{}' is no buffer", name));
      nest_.buffers[static_cast<size_t>(buffer)].over = buffers_.at(name);
    }
    next_line();
    nest_.body = done() ? block({}) : statements(line().depth);
    if (!done()) fail("not indented as the statement before");
    return std::move(nest_);
  }

 private:
  // --- lines and characters

  bool done() const { return at_ == lines_.size(); }
  const Line& line() const { return lines_[std::min(at_, lines_.size() - 1)]; }
  void next_line() { ++at_, column_ = 0; }
  bool at_line(std::string_view text) const { return !done() && line().text == text; }
  std::string_view rest() const { return line().text.substr(std::min(column_, line().text.size())); }

  [[noreturn]] void fail(const std::string& what) const {
    if (lines_.empty()) throw InternalError("loop text: " + what);
    throw InternalError(
        fmt::format("loop text, line {}, column {}: {}", line().number, line().depth + column_ + 1, what));
  }

  void skip_spaces() {
    while (rest().starts_with(' ')) ++column_;
  }
  bool take(std::string_view sign) {
    skip_spaces();
    if (!rest().starts_with(sign)) return false;
    column_ += sign.size();
    return true;
  }
  void expect(std::string_view sign) {
    if (!take(sign)) fail(fmt::format("expected '{}'", sign));
  }
  std::string_view peek_word() {
    skip_spaces();
    size_t n = 0;
    while (n < rest().size() && is_word_char(rest()[n])) ++n;
    return rest().substr(0, n);
  }
  std::string_view word() {
    const std::string_view w = peek_word();
    if (w.empty()) fail("expected a word");
    column_ += w.size();
    return w;
  }
  bool take_word(std::string_view w) {
    if (peek_word() != w) return false;
    column_ += w.size();
    return true;
  }
  int64_t number() {
    skip_spaces();
    int64_t v = 0;
    const auto [end, error] = std::from_chars(rest().data(), rest().data() + rest().size(), v);
    if (error != std::errc{}) fail("expected a whole number");
    column_ += static_cast<size_t>(end - rest().data());
    return v;
  }
  void end_of_line() {
    skip_spaces();
    if (!rest().empty()) fail("more than was expected");
    next_line();
  }

  // --- the head

  void head() {
    const std::string_view w = word();
    for (const text::SpaceWord& s : text::kSpaces)
      if (s.word == w) return buffer(s.space);
    if (w == "kernel" || w == "origin") {
      skip_spaces();
      if (w == "kernel") nest_.name = rest();
      else nest_.origins.emplace_back(rest());
      return next_line();
    }
    if (w == "parallel") nest_.parallel_extent = number();
    else if (w == "threads") nest_.threads = static_cast<int>(number());
    else if (w == "flops") nest_.flops = number();
    else if (w == "bytes") nest_.bytes = number();
    else
      fail(
          "expected kernel, parallel, threads, flops, bytes, origin, argument, scratch, register, shared, tile or "
          "body");
    end_of_line();
  }

  void buffer(Space space) {
    Buffer b;
    b.space = space;
    b.name = new_name();
    expect(":");
    b.dtype = dtype_of(word());
    expect("[");
    if (!take("?")) b.numel = number();
    expect("]");
    b.bits = take_word("bits");
    b.written = take_word("written");
    if (take_word("over")) over_.emplace_back(static_cast<int>(nest_.buffers.size()), word());
    const std::string name = b.name;
    buffers_[name] = nest_.add_buffer(std::move(b));
    end_of_line();
  }

  std::string new_name() {
    const std::string name(word());
    if (text::is_reserved(name)) fail(fmt::format("'{}' means something else", name));
    if (buffers_.contains(name)) fail(fmt::format("'{}' is a buffer", name));
    return name;
  }

  // --- statements

  Stmt statements(size_t depth) {
    std::vector<Stmt> body;
    bool braced = false;  // one statement stands alone, unless it is a block of its own
    while (!done() && line().depth == depth) {
      if (at_line("pass")) {
        next_line();
        braced = true;
      } else if (at_line("block:")) {
        next_line();
        body.push_back(inner(depth));
        if (body.back()->kind != StmtKind::Block) body.back() = block({body.back()});
        braced = true;
      } else {
        body.push_back(statement(depth));
      }
    }
    if (!done() && line().depth > depth) fail("indented too far");
    return body.size() == 1 && !braced ? body[0] : block(std::move(body));
  }

  Stmt inner(size_t depth) {
    if (done() || line().depth <= depth) fail("expected an indented block");
    return statements(line().depth);
  }

  // One side of a transpose, or the memory side of a tile: x[index by pitch]
  struct Block {
    int buffer;
    Expr index;
    int64_t pitch;
  };
  Block square() {
    Block b;
    b.buffer = find(buffers_, "buffer");
    expect("[");
    b.index = expr();
    if (!take_word("by")) fail("expected 'by' and a pitch");
    b.pitch = number();
    expect("]");
    return b;
  }

  // One side of a copy: x[index] or x[index if guard]
  struct Side {
    int buffer;
    Expr index, guard;
  };
  Side side() {
    Side s;
    s.buffer = find(buffers_, "buffer");
    expect("[");
    s.index = expr();
    if (take_word("if")) s.guard = expr();
    expect("]");
    return s;
  }

  Stmt statement(size_t depth) {
    const std::string_view first = peek_word();
    for (const text::LoopWord& l : text::kLoops)
      if (l.word == first) return loop(l.kind, depth);
    if (take_word("let")) {
      const std::string name = new_name();
      expect(":");
      const DType dtype = dtype_of(word());
      if (!locals_.contains(name)) locals_[name] = nest_.add_local(name, dtype);
      expect("=");
      Expr value = expr();
      end_of_line();
      return let(locals_[name], std::move(value));
    }
    if (take_word("store")) {
      const int id = find(buffers_, "buffer");
      expect("[");
      Expr index = expr();
      expect("]");
      expect("=");
      Expr value = expr();
      end_of_line();
      return store(id, std::move(index), std::move(value));
    }
    if (take_word("prefetch")) {
      expect("(");
      const int level = static_cast<int>(number());
      expect(")");
      const int id = find(buffers_, "buffer");
      expect("[");
      Expr index = expr();
      expect("]");
      end_of_line();
      return prefetch(id, std::move(index), level);
    }
    if (take_word("transpose")) {
      expect("(");
      const int lanes = static_cast<int>(number());
      expect(")");
      const Block to = square();
      expect("=");
      const Block from = square();
      end_of_line();
      return transpose(to.buffer, to.index, to.pitch, from.buffer, from.index, from.pitch, lanes);
    }
    if (take_word("tilezero")) {
      const int tile = find(buffers_, "buffer");
      end_of_line();
      return tile_zero(tile);
    }
    if (take_word("tileload")) {
      const int tile = find(buffers_, "buffer");
      expect("=");
      const Block from = square();
      end_of_line();
      return tile_load(tile, from.buffer, from.index, from.pitch);
    }
    if (take_word("tiledot")) {
      const int sums = find(buffers_, "buffer");
      expect("+=");
      const int a = find(buffers_, "buffer");
      expect("*");
      const int b = find(buffers_, "buffer");
      end_of_line();
      return tile_dot(sums, a, b);
    }
    if (take_word("tilestore")) {
      const Block to = square();
      expect("=");
      const int tile = find(buffers_, "buffer");
      end_of_line();
      return tile_store(to.buffer, to.index, to.pitch, tile);
    }
    if (take_word("check")) {
      expect("(");
      const int code = static_cast<int>(number());
      expect(")");
      Expr ok = expr();
      end_of_line();
      return check(std::move(ok), code);
    }
    if (take_word("barrier")) {
      end_of_line();
      return barrier();
    }
    if (take_word("mma")) {
      const int id = find(buffers_, "buffer");
      expect("[");
      Expr index = expr();
      expect("]");
      expect("+=");
      Expr a = primary();
      expect("*");
      Expr b = primary();
      end_of_line();
      return mma(id, std::move(index), std::move(a), std::move(b));
    }
    if (take_word("commit")) {
      end_of_line();
      return commit_copies();
    }
    if (take_word("wait")) {
      expect("(");
      const int groups = static_cast<int>(number());
      expect(")");
      end_of_line();
      return wait_copies(groups);
    }
    if (take_word("loadmatrix")) {
      const Side to = side();
      expect("=");
      const Side from = side();
      const bool transposed = take_word("transposed");
      end_of_line();
      return load_matrix(to.buffer, to.index, from.buffer, from.index, transposed);
    }
    if (const bool async = peek_word() == "copyasync"; async || peek_word() == "copy") {
      word();
      expect("(");
      const int lanes = static_cast<int>(number());
      expect(")");
      const Side to = side();
      expect("=");
      const Side from = side();
      end_of_line();
      if (from.guard && !async) fail("a copy has no guard");
      return async ? copy_async(to.buffer, to.index, from.buffer, from.index, lanes, from.guard)
                   : copy(to.buffer, to.index, from.buffer, from.index, lanes);
    }
    const bool warp = take_word("warp");
    const int id = find(locals_, "local");
    expect("=");
    const std::string_view combine = word();
    for (const text::CombineWord& c : text::kCombines) {
      if (c.word != combine) continue;
      expect("(");
      if (find(locals_, "local") != id) fail("a reduction runs on the local that it is assigned to");
      if (warp) {
        expect(")");
        end_of_line();
        return warp_reduce(id, c.kind);
      }
      expect(",");
      Expr value = expr();
      expect(")");
      end_of_line();
      return reduce(id, c.kind, std::move(value));
    }
    fail("expected sum, prod, max or min");
  }

  Stmt loop(LoopKind kind, size_t depth) {
    word();
    int lanes = 1;
    if (kind == LoopKind::Vector) {
      expect("(");
      lanes = static_cast<int>(number());
      expect(")");
    }
    const std::string name = new_name();
    if (!take_word("in")) fail("expected 'in'");
    Expr extent = expr();
    int64_t bound = extent->kind == ExprKind::Int ? extent->int_value : -1;
    if (take_word("atmost")) bound = take("?") ? -1 : number();
    expect(":");
    end_of_line();
    if (!vars_.contains(name)) vars_[name] = nest_.add_var(name, bound);
    const int var = vars_[name];
    return for_loop(kind, var, std::move(extent), inner(depth), lanes);
  }

  int find(const std::map<std::string, int, std::less<>>& names, const char* what) {
    const std::string_view w = word();
    const auto at = names.find(w);
    if (at == names.end()) fail(fmt::format("no {} is called '{}'", what, w));
    return at->second;
  }

  // --- expressions

  Expr expr(int level = 0) {
    Expr left = primary();
    for (;;) {
      skip_spaces();
      const text::Infix* found = nullptr;
      for (const text::Infix& infix : text::kInfix)
        if (!found && rest().starts_with(infix.sign)) found = &infix;
      if (!found || found->level < level) return left;
      column_ += found->sign.size();
      Expr right = expr(found->level + 1);
      const bool minus =
          found->op == Op::Sub && left->dtype == DType::I64 && right->kind == ExprKind::Int && right->int_value >= 0;
      left = minus ? apply(Op::Add, {left, integer(-right->int_value)}) : apply(found->op, {left, right});
    }
  }

  Expr primary() {
    skip_spaces();
    if (take("(")) {
      Expr e = expr();
      expect(")");
      return e;
    }
    const char c = rest().empty() ? '\0' : rest()[0];
    const std::string_view w = c == '-' ? "" : peek_word();
    if (c == '-' || std::isdigit(static_cast<unsigned char>(c)) || w == "inf" || w == "nan") return literal();
    if (take_word("true")) return integer(1, DType::Bool);
    if (take_word("false")) return integer(0, DType::Bool);
    if (take_word("fma")) {
      std::vector<Expr> a = arguments(3);
      return fma(a[0], a[1], a[2]);
    }
    if (take_word("pair")) {
      std::vector<Expr> a = arguments(2);
      return pair(a[0], a[1]);
    }
    if (take_word("dot")) {
      std::vector<Expr> a = arguments(3);
      return dot(a[0], a[1], a[2]);
    }
    if (w == "cast" || w == "bitcast") {
      word();
      expect("<");
      const DType dtype = dtype_of(word());
      expect(">");
      const Expr a = arguments(1)[0];
      return w == "cast" ? cast(a, dtype) : bitcast(a, dtype);
    }
    if (const auto at = buffers_.find(w); at != buffers_.end()) return load(at->second);
    if (const auto at = vars_.find(w); at != vars_.end()) return word(), nest_.var(at->second);
    if (const auto at = locals_.find(w); at != locals_.end()) return word(), nest_.local(at->second);
    for (int op = 0; op <= static_cast<int>(Op::Result); ++op)
      if (is_elementwise(static_cast<Op>(op)) && name_of(static_cast<Op>(op)) == w) {
        word();
        return apply(static_cast<Op>(op), arguments(arity_of(static_cast<Op>(op))));
      }
    fail(w.empty() ? "expected an expression" : fmt::format("nothing is called '{}'", w));
  }

  Expr load(int id) {
    word();
    expect("[");
    Expr index = expr(), guard;
    if (take_word("if")) guard = expr();
    expect("]");
    return nest_.load(id, std::move(index), std::move(guard));
  }

  std::vector<Expr> arguments(int count) {
    std::vector<Expr> args;
    expect("(");
    while (static_cast<int>(args.size()) < count) {
      if (!args.empty()) expect(",");
      args.push_back(expr());
    }
    expect(")");
    return args;
  }

  Expr literal() {
    size_t length = 1;  // of the sign or the first digit; then digits, a point, an exponent with its sign
    while (length < rest().size() &&
           (is_word_char(rest()[length]) ||
            (rest()[length - 1] == 'e' && std::string_view("+-").find(rest()[length]) != std::string_view::npos)))
      ++length;
    const std::string text(rest().substr(0, length));
    column_ += text.size();
    const bool is_real = text.find_first_of(".ein") != std::string::npos;  // 1.5, 1e+10, inf, nan
    DType dtype = is_real ? DType::F32 : DType::I64;
    if (rest().size() > 1 && rest()[0] == ':' && std::isalpha(static_cast<unsigned char>(rest()[1]))) {
      ++column_;
      dtype = dtype_of(word());
    }
    char* end = nullptr;
    if (is_real) {
      const double v =
          dtype == DType::F32 ? static_cast<double>(std::strtof(text.c_str(), &end)) : std::strtod(text.c_str(), &end);
      if (*end || !is_float(dtype)) fail(fmt::format("'{}' is not a number of this dtype", text));
      return real(v, dtype);
    }
    int64_t v = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), v);
    if (error != std::errc{} || stop != text.data() + text.size() || is_float(dtype))
      fail(fmt::format("'{}' is not a number of this dtype", text));
    return integer(v, dtype);
  }

  std::vector<Line> lines_;
  size_t at_ = 0, column_ = 0;
  LoopNest nest_;
  std::map<std::string, int, std::less<>> buffers_, vars_, locals_;
  std::vector<std::pair<int, std::string>> over_;  // (buffer, name of the one below it, which may come later)
};

}  // namespace

LoopNest parse(std::string_view text) { return Parser(text).run(); }

}  // namespace trainc::loop
