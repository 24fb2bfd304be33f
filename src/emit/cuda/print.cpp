// A statement of the nest is a line or two of CUDA C++; what an expression uses twice gets a name before it.
#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <unordered_map>

#include "emit/cuda/emit.h"
#include "emit/cuda/prelude.h"
#include "support/error.h"

namespace trainc::emit::cuda {
namespace {

using namespace loop;

constexpr int64_t kInt = std::numeric_limits<int32_t>::max();

const char* type_of(DType d) {
  switch (d) {
    case DType::F64: return "double";
    case DType::F32: return "float";
    case DType::BF16: return "bf16";
    case DType::F16: return "f16";
    case DType::I64: return "i64";
    case DType::I32: return "int";
    case DType::I16: return "short";
    case DType::I8: return "signed char";
    case DType::U8: return "unsigned char";
    case DType::U64: return "u64";
    case DType::U32: return "unsigned";
    case DType::U16: return "unsigned short";
    case DType::Bool: return "bool";
  }
  return "?";
}
const char* memory_type_of(DType d) { return d == DType::Bool ? "unsigned char" : type_of(d); }

std::string number(double v, DType d) {
  if (d == DType::BF16 || d == DType::F16) return fmt::format("f32_to_{}({})", name_of(d), number(v, DType::F32));
  const bool single = d == DType::F32;
  if (std::isnan(v)) return single ? "__uint_as_float(0x7fffffffu)" : "__longlong_as_double(0x7fffffffffffffffll)";
  if (std::isinf(v)) {
    const std::string inf = single ? "__uint_as_float(0x7f800000u)" : "__longlong_as_double(0x7ff0000000000000ll)";
    return v < 0 ? "(-" + inf + ")" : inf;
  }
  std::string s = single ? fmt::format("{}", static_cast<float>(v)) : fmt::format("{}", v);
  if (s.find_first_of(".e") == std::string::npos) s += ".0";
  if (single) s += "f";
  return std::signbit(v) ? "(" + s + ")" : s;
}

class Printer {
 public:
  Printer(const LoopNest& nest, Entry entry) : nest_(nest), entry_(entry) {
    require(nest.threads > 0, "emit: " + nest.name + " is a nest for a CPU");
    for (const Buffer& b : nest.buffers) buffers_.push_back(name(b.name));
    for (const VarInfo& v : nest.vars) vars_.push_back(name(v.name));
    for (const LocalInfo& l : nest.locals) locals_.push_back(name(l.name));
  }

  std::string run() {
    size_t arguments = 0;
    for (const Buffer& b : nest_.buffers) arguments += b.space == Space::Argument;
    out_ = std::string(kPrelude) + kPtx;
    for (const std::string& origin : nest_.origins) line("// {}", one_line(origin));
    const bool plan = entry_ == Entry::Plan;
    if (plan) line("struct Slots {{ int at[{}]; }};", std::max<size_t>(arguments, 1));
    line(
        "extern \"C\" __global__ void __launch_bounds__({} MIN_BLOCKS) {}(void* const* table, {}, unsigned* status) {{",
        nest_.threads, nest_.name, plan ? "const Slots slots" : "const int* first_chunk, int tensors");
    ++depth_;
    if (!plan) {
      line("int low = 0, high = tensors;  // the tensor that this block's chunk belongs to");
      line(
          "while (high - low > 1) {{ const int middle = (low + high) / 2; if (first_chunk[middle] <= (int)blockIdx.x) "
          "low = middle; else high = middle; }}");
      line("table += (i64)low * {};", arguments);
    }
    for (size_t i = 0; i < nest_.buffers.size(); ++i) {
      const Buffer& b = nest_.buffers[i];
      const char* t = memory_type_of(b.dtype);
      switch (b.space) {
        case Space::Argument: {
          const std::string at = plan ? fmt::format("slots.at[{}]", i) : std::to_string(i);
          line("{}{}* __restrict__ const {} = ({}{}*)table[{}];", b.written ? "" : "const ", t, buffers_[i],
               b.written ? "" : "const ", t, at);
          break;
        }
        case Space::Shared:
          line("__shared__ __align__(16) {} {}[{}];", t, buffers_[i], std::max<int64_t>(b.numel, 1));
          break;
        case Space::Register: line("{} {}[{}];", t, buffers_[i], std::max<int64_t>(b.numel, 1)); break;
        case Space::Scratch:
        case Space::Tile: throw InternalError("emit: a Scratch or Tile buffer in a nest for a device");
      }
    }
    for (int b : copied_arguments(*nest_.body)) {
      wide_[b] = name(nest_.buffers[static_cast<size_t>(b)].name + "_wide");
      line("const bool {} = ((u64){} & {}) == 0;", wide_[b], buffers_[static_cast<size_t>(b)], kCopyBytes - 1);
    }
    statement(*nest_.body);
    --depth_;
    line("}}");
    return std::move(out_);
  }

 private:
  template <class... A> void line(fmt::format_string<A...> format, A&&... a) {
    out_.append(static_cast<size_t>(depth_) * 2, ' ');
    fmt::format_to(std::back_inserter(out_), format, std::forward<A>(a)...);
    out_ += '\n';
  }
  static std::string one_line(std::string s) {
    for (char& c : s)
      if (c == '\n' || c == '\\') c = ' ';
    return s;
  }

  std::set<int> copied_arguments(const StmtNode& s) const {
    std::set<int> found;
    if (s.kind == StmtKind::Copy || s.kind == StmtKind::CopyAsync)
      for (int b : {s.buffer, s.source})
        if (const Buffer& buffer = nest_.buffers.at(static_cast<size_t>(b));
            buffer.space == Space::Argument && !buffer.bits)
          found.insert(b);
    for (const Stmt& inner : s.body) found.merge(copied_arguments(*inner));
    return found;
  }

  // A trailing underscore keeps names apart from C++'s words and the prelude's.
  std::string name(const std::string& wanted) {
    std::string base;
    for (char c : wanted) base += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
    if (base.empty() || std::isdigit(static_cast<unsigned char>(base[0]))) base = "x" + base;
    std::string unique = base + "_";
    for (int i = 1; !taken_.insert(unique).second; ++i) unique = fmt::format("{}{}_", base, i);
    return unique;
  }

  // --- expressions

  /// An index that 32 bits hold, with all that it is made of.
  bool narrow(const Expr& e) {
    if (e->dtype != DType::I64) return false;
    if (const auto at = narrow_.find(e.get()); at != narrow_.end()) return at->second;
    bool fits = false;
    switch (e->kind) {
      case ExprKind::Int: fits = e->int_value >= -kInt && e->int_value <= kInt; break;
      case ExprKind::Var: fits = narrow_var(e->id); break;
      case ExprKind::Apply: {
        const Range r = range_of(e);
        fits = r.known && r.low >= -kInt && r.high <= kInt;
        for (const Expr& a : e->args) fits = fits && (a->dtype == DType::I64 ? narrow(a) : !is_float(a->dtype));
        break;
      }
      case ExprKind::Float:
      case ExprKind::Local:
      case ExprKind::Load:
      case ExprKind::Fma:
      case ExprKind::Pair:
      case ExprKind::Dot: break;
    }
    kept_.push_back(e);  // the key is an address
    return narrow_[e.get()] = fits;
  }
  // With room for the step past the end of a Thread loop.
  bool narrow_var(int id) const {
    const int64_t extent = nest_.vars[static_cast<size_t>(id)].extent;
    return extent >= 0 && extent <= kInt - 1024;
  }
  std::string ctype(const Expr& e) { return narrow(e) ? "int" : type_of(e->dtype); }

  void count(const Expr& e) {
    if (!e || uses_[e.get()]++ > 0) return;
    for (const Expr& a : e->args) count(a);
  }

  /// The texts of a statement's expressions, after the lines of what they share.
  template <class... E> void prepare(const E&... e) {
    uses_.clear();
    named_.clear();
    (count(e), ...);
  }

  std::string expr(const Expr& e) {
    if (const auto at = named_.find(e.get()); at != named_.end()) return at->second;
    std::string text = plain(e);
    const bool leaf = e->args.empty();
    if (!leaf && uses_[e.get()] > 1) {
      const std::string temporary = fmt::format("t{}", temporaries_++);
      line("const {} {} = {};", ctype(e), temporary, text);
      return named_[e.get()] = temporary;
    }
    return text;
  }

  std::string plain(const Expr& e) {
    switch (e->kind) {
      case ExprKind::Int:
        if (e->dtype == DType::Bool) return e->int_value ? "true" : "false";
        if (e->dtype == DType::U64) return fmt::format("{}ull", static_cast<uint64_t>(e->int_value));
        if (e->dtype == DType::I64 && !narrow(e))
          return e->int_value == INT64_MIN ? "(i64)(1ull << 63)" : fmt::format("({}ll)", e->int_value);
        if (e->dtype == DType::I64)
          return e->int_value < 0 ? fmt::format("({})", e->int_value) : std::to_string(e->int_value);
        return fmt::format("({})({}ll)", type_of(e->dtype), e->int_value);
      case ExprKind::Float: return number(e->float_value, e->dtype);
      case ExprKind::Var: return vars_.at(static_cast<size_t>(e->id));
      case ExprKind::Local: return locals_.at(static_cast<size_t>(e->id));
      case ExprKind::Load: {
        const bool bits = nest_.buffers.at(static_cast<size_t>(e->id)).bits;
        const std::string &memory = buffers_.at(static_cast<size_t>(e->id)), index = expr(e->args[0]);
        std::string at = bits ? fmt::format("bit({}, {})", memory, index) : fmt::format("{}[{}]", memory, index);
        if (e->dtype == DType::Bool && !bits) at = "(" + at + " != 0)";
        if (e->args.size() == 1) return at;
        return fmt::format("({} ? {} : ({})0)", expr(e->args[1]), at, type_of(e->dtype));
      }
      case ExprKind::Pair:
      case ExprKind::Dot: throw InternalError("emit: the nest is a CPU's");
      case ExprKind::Fma: {
        const std::string a = expr(e->args[0]), b = expr(e->args[1]), c = expr(e->args[2]);
        return fmt::format("{}({}, {}, {})", e->dtype == DType::F64 ? "fma" : "fmaf", a, b, c);
      }
      case ExprKind::Apply: break;
    }
    if (e->op == Op::Bitcast) return bitcast(expr(e->args[0]), e->args[0]->dtype, e->dtype);
    if (e->op == Op::Cast) return convert(expr(e->args[0]), e->args[0]->dtype, e->dtype);
    return operation(e);
  }

  static std::string convert(const std::string& x, DType from, DType to) {
    if (from == to) return x;
    if (from == DType::BF16 || from == DType::F16)
      return convert(fmt::format("{}_to_f32({})", name_of(from), x), DType::F32, to);
    if (to == DType::BF16 || to == DType::F16)
      return fmt::format("f32_to_{}({})", name_of(to), convert(x, from, DType::F32));
    if (to == DType::Bool) return fmt::format("({} != 0)", x);
    if (is_float(from) && !is_float(to))
      return fmt::format("({})to_{}({})", type_of(to), size_of(to) == 8 ? "i64" : "i32", x);
    return fmt::format("({})({})", type_of(to), x);
  }

  static std::string bitcast(const std::string& x, DType from, DType to) {
    if (from == DType::F32) return fmt::format("({})__float_as_uint({})", type_of(to), x);
    if (from == DType::F64) return fmt::format("({})__double_as_longlong({})", type_of(to), x);
    if (to == DType::F32) return fmt::format("__uint_as_float((unsigned)({}))", x);
    if (to == DType::F64) return fmt::format("__longlong_as_double((i64)({}))", x);
    return fmt::format("({})({})", type_of(to), x);  // halves are their bits
  }

  std::string operation(const Expr& e) {
    std::vector<std::string> a;
    for (const Expr& x : e->args) a.push_back(expr(x));
    const DType d = e->args[e->op == Op::Select ? 1 : 0]->dtype;
    const bool real = is_float(d), single = d == DType::F32;
    auto call = [&](const char* function) {
      return fmt::format("{}{}({})", function, single ? "f" : "", fmt::join(a, ", "));
    };
    auto refuse = [&]() -> std::string {
      throw InternalError(fmt::format("emit: no {} of {} on a device", name_of(e->op), name_of(d)));
    };
    auto real_call = [&](const char* function) { return real ? call(function) : refuse(); };
    auto rounding = [&](const char* function) { return real ? call(function) : a[0]; };
    // Operands of one C++ type; templates and the built-in min and max need that.
    auto typed = [&](const char* function) {
      const std::string t = ctype(e);
      return fmt::format("{}<{}>(({})({}), ({})({}))", function, t, t, a[0], t, a[1]);
    };
    auto infix = [&](const char* sign) {
      if (real) return fmt::format("({} {} {})", a[0], sign, a[1]);
      if (narrow(e)) return fmt::format("({} {} {})", a[0], sign, a[1]);
      if (d == DType::Bool && *sign == '+') return fmt::format("({} | {})", a[0], a[1]);
      return fmt::format("({})((u64){} {} (u64){})", type_of(d), a[0], sign, a[1]);  // wraps
    };
    auto bits = [&](const char* sign) {
      return real ? refuse() : fmt::format("({})({} {} {})", type_of(d), a[0], sign, a[1]);
    };
    auto compare = [&](const char* sign) { return fmt::format("({} {} {})", a[0], sign, a[1]); };
    // Index arithmetic: not negative, by a positive number.
    auto divided = [&](const char* sign) -> std::string {
      if (real || e->args[1]->kind != ExprKind::Int || e->args[1]->int_value <= 0) return "";
      const Range r = range_of(e->args[0]);
      return r.known && r.low >= 0 ? fmt::format("({} {} {})", a[0], sign, a[1]) : "";
    };
    switch (e->op) {
      case Op::Neg: return real ? fmt::format("(-{})", a[0]) : fmt::format("({})(0 - (u64){})", type_of(d), a[0]);
      case Op::Abs:
        return is_unsigned(d) ? a[0]
               : real         ? call("fabs")
                              : fmt::format("({} < 0 ? ({})(0 - (u64){}) : {})", a[0], type_of(d), a[0], a[0]);
      case Op::Sign: return fmt::format("sign<{}>({})", type_of(d), a[0]);
      case Op::Floor: return rounding("floor");
      case Op::Ceil: return rounding("ceil");
      case Op::Round: return rounding("rint");
      case Op::Trunc: return rounding("trunc");
      case Op::Sqrt: return real_call("sqrt");
      case Op::Rsqrt: return real ? fmt::format("({} / {})", single ? "1.0f" : "1.0", call("sqrt")) : refuse();
      case Op::Exp: return real_call("exp");
      case Op::Expm1: return real_call("expm1");
      case Op::Log: return real_call("log");
      case Op::Log1p: return real_call("log1p");
      case Op::Sin: return real_call("sin");
      case Op::Cos: return real_call("cos");
      case Op::Tanh: return real_call("tanh");
      case Op::Erf: return real_call("erf");
      case Op::Erfc: return real_call("erfc");
      case Op::Not: return d == DType::Bool ? "(!" + a[0] + ")" : fmt::format("({})(~{})", type_of(d), a[0]);
      case Op::IsNan: return fmt::format("({} != {})", a[0], a[0]);
      case Op::Add: return infix("+");
      case Op::Sub: return infix("-");
      case Op::Mul: return infix("*");
      case Op::Div: return real ? fmt::format("({} / {})", a[0], a[1]) : typed("div_trunc");
      case Op::FloorDiv: {
        if (real) return fmt::format("floor{}({} / {})", single ? "f" : "", a[0], a[1]);
        const std::string text = divided("/");
        return text.empty() ? typed("div_floor") : text;
      }
      case Op::Mod: {
        if (real) return fmt::format("mod_floor({}, {})", a[0], a[1]);
        const std::string text = divided("%");
        return text.empty() ? typed("mod_floor") : text;
      }
      case Op::Pow: return real ? call("pow") : d == DType::Bool ? refuse() : typed("power");
      case Op::Max: return typed("greater");
      case Op::Min: return typed("lesser");
      case Op::And: return bits("&");
      case Op::Or: return bits("|");
      case Op::Xor: return bits("^");
      case Op::Shl: return typed("shift_left");
      case Op::Shr: return typed("shift_right");
      case Op::Sar: return typed("shift_right_signed");
      case Op::Lt: return compare("<");
      case Op::Le: return compare("<=");
      case Op::Eq: return compare("==");
      case Op::Ne: return compare("!=");
      case Op::Select: return fmt::format("({} ? {} : {})", a[0], a[1], a[2]);
      // What an expression of a nest never is:
      case Op::Cast:  // plain()
      case Op::Bitcast:
      case Op::Input:
      case Op::Constant:
      case Op::Iota:
      case Op::Random:
      case Op::Reduce:
      case Op::Scan:
      case Op::Contract:
      case Op::Reshape:
      case Op::Permute:
      case Op::Broadcast:
      case Op::Slice:
      case Op::Pad:
      case Op::Concat:
      case Op::Reverse:
      case Op::Window:
      case Op::Gather:
      case Op::Scatter:
      case Op::Extern:
      case Op::Result: break;
    }
    return refuse();
  }

  // --- statements

  static const char* combine_name(ReduceKind kind) {
    switch (kind) {
      case ReduceKind::Sum: return "sum";
      case ReduceKind::Prod: return "product";
      case ReduceKind::Max: return "greater";
      case ReduceKind::Min: return "lesser";
      case ReduceKind::ArgMax:
      case ReduceKind::ArgMin: break;
    }
    throw InternalError("emit: this reduction is not one of a nest");
  }

  void body(const StmtNode& s) {
    ++depth_;
    if (s.kind == StmtKind::Block)
      for (const Stmt& inner : s.body) statement(*inner);
    else statement(s);
    --depth_;
    line("}}");
  }

  void statement(const StmtNode& s) {
    switch (s.kind) {
      case StmtKind::Block:
        line("{{");
        body(s);
        break;
      case StmtKind::For: loop(s); break;
      case StmtKind::Store: {
        prepare(s.index, s.value);
        const std::string index = expr(s.index), value = expr(s.value);
        line("{}[{}] = {};", buffers_.at(static_cast<size_t>(s.buffer)), index, value);
        break;
      }
      case StmtKind::Let: {
        prepare(s.value);
        const std::string value = expr(s.value);
        line("{} {} = {};", type_of(s.value->dtype), locals_.at(static_cast<size_t>(s.local)), value);
        break;
      }
      case StmtKind::Reduce: {
        prepare(s.value);
        const std::string value = expr(s.value), &local = locals_.at(static_cast<size_t>(s.local));
        // of two equal ones `greater` and `lesser` give the second: the one that came first (loop.h)
        const bool best = s.combine == ReduceKind::Max || s.combine == ReduceKind::Min;
        line("{} = {}<{}>({}, {});", local, combine_name(s.combine), type_of(s.value->dtype), best ? value : local,
             best ? local : value);
        break;
      }
      case StmtKind::Check: {
        prepare(s.value);
        const std::string ok = expr(s.value);
        line("if (!{}) atomicMax(status, {}u);", ok, s.code);
        break;
      }
      case StmtKind::Prefetch:
      case StmtKind::Transpose:
      case StmtKind::TileZero:
      case StmtKind::TileLoad:
      case StmtKind::TileDot:
      case StmtKind::TileStore: throw InternalError("emit: the nest is a CPU's");
      case StmtKind::Barrier: line("__syncthreads();"); break;
      case StmtKind::WarpReduce: {
        const std::string& local = locals_.at(static_cast<size_t>(s.local));
        const DType d = nest_.locals.at(static_cast<size_t>(s.local)).dtype;
        const char* t = size_of(d) < 4 ? "int" : type_of(d);  // what __shfl_xor_sync takes
        line("{} = warp_reduce<{}, {}<{}>>({});", local, t, combine_name(s.combine), t, local);
        break;
      }
      case StmtKind::Mma: {
        prepare(s.index, s.value->args[0], s.second->args[0]);
        const std::string sums = expr(s.index), a = expr(s.value->args[0]), b = expr(s.second->args[0]);
        line("mma({} + {}, {} + {}, {} + {});", buffers_.at(static_cast<size_t>(s.buffer)), sums,
             buffers_.at(static_cast<size_t>(s.value->id)), a, buffers_.at(static_cast<size_t>(s.second->id)), b);
        break;
      }
      case StmtKind::Copy: copy(s); break;
      case StmtKind::CopyAsync: {
        prepare(s.index, s.value, s.second);
        const std::string index = expr(s.index), from = expr(s.value), exists = s.second ? expr(s.second) : "true";
        line("copy_async({} + {}, {} + {}, {}, {});", buffers_.at(static_cast<size_t>(s.buffer)), index,
             buffers_.at(static_cast<size_t>(s.source)), from, exists, wide_.at(s.source));
        break;
      }
      case StmtKind::CommitCopies: line("commit_copies();"); break;
      case StmtKind::WaitCopies: line("wait_copies<{}>();", s.code); break;
      case StmtKind::LoadMatrix: {
        prepare(s.index, s.value);
        const std::string index = expr(s.index), from = expr(s.value);
        line("load_matrix{}({} + {}, {} + {});", s.transposed ? "_transposed" : "",
             buffers_.at(static_cast<size_t>(s.buffer)), index, buffers_.at(static_cast<size_t>(s.source)), from);
        break;
      }
    }
  }

  void copy(const StmtNode& s) {
    prepare(s.index, s.value);
    const std::string index = expr(s.index), from = expr(s.value);
    const bool reads = nest_.buffers.at(static_cast<size_t>(s.buffer)).space == Space::Register;
    if (nest_.buffers.at(static_cast<size_t>(reads ? s.source : s.buffer)).bits) {
      const std::string &to = buffers_.at(static_cast<size_t>(s.buffer)),
                        &of = buffers_.at(static_cast<size_t>(s.source));
      if (reads) line("read_bits<{}>({} + {}, {}, {});", s.lanes, to, index, of, from);
      else line("write_bits({}, {}, {} + {});", to, index, of, from);
      return;
    }
    const auto wide = wide_.find(reads ? s.source : s.buffer);
    line("{}<{}>({} + {}, {} + {}, {});", reads ? "read_wide" : "write_wide", s.lanes,
         buffers_.at(static_cast<size_t>(s.buffer)), index, buffers_.at(static_cast<size_t>(s.source)), from,
         wide == wide_.end() ? "true" : wide->second);
  }

  void loop(const StmtNode& s) {
    const std::string& var = vars_.at(static_cast<size_t>(s.var));
    const char* t = narrow_var(s.var) ? "int" : "i64";
    const StmtNode& inner = *s.body[0];
    if (s.loop == LoopKind::Parallel) {
      line("{{");
      ++depth_;
      line("const {} {} = {};", t, var, entry_ == Entry::Plan ? "blockIdx.x" : "blockIdx.x - first_chunk[low]");
      --depth_;
      return body(inner);
    }
    const bool condition = s.loop == LoopKind::Serial && is_condition(s.extent);
    const Expr& wanted = condition ? s.extent->args[0] : s.extent;
    prepare(wanted);
    const std::string extent = expr(wanted);
    const bool number = s.extent->kind == ExprKind::Int;
    switch (s.loop) {
      case LoopKind::Thread:
        if (number && s.extent->int_value <= nest_.threads) {
          if (s.extent->int_value == nest_.threads) line("{{");
          else line("if (threadIdx.x < {}) {{", s.extent->int_value);
          ++depth_;
          line("const int {} = threadIdx.x;", var);
          --depth_;
        } else {
          line("for ({} {} = threadIdx.x; {} < {}; {} += {}) {{", t, var, var, extent, var, nest_.threads);
        }
        break;
      case LoopKind::Unroll:
        line("#pragma unroll");
        line("for (int {} = 0; {} < {}; ++{}) {{", var, var, extent, var);
        break;
      case LoopKind::Serial:
        if (condition) {  // a loop of 0 or 1 iterations
          line("if ({}) {{", extent);
          ++depth_;
          line("const int {} = 0;", var);
          --depth_;
        } else {
          line("for ({} {} = 0; {} < {}; ++{}) {{", t, var, var, extent, var);
        }
        break;
      case LoopKind::Parallel:
      case LoopKind::Vector: throw InternalError("emit: a Vector loop in a nest for a device");
    }
    body(inner);
  }
  static bool is_condition(const Expr& e) {
    return e->kind == ExprKind::Apply && e->op == Op::Cast && e->args[0]->dtype == DType::Bool;
  }

  const LoopNest& nest_;
  const Entry entry_;
  std::set<std::string> taken_;
  std::vector<std::string> buffers_, vars_, locals_;
  std::unordered_map<int, std::string> wide_;  // whether an argument begins where its copies may be one access
  std::unordered_map<const ExprNode*, bool> narrow_;
  std::vector<Expr> kept_;
  std::unordered_map<const ExprNode*, int> uses_;
  std::unordered_map<const ExprNode*, std::string> named_;
  int depth_ = 0, temporaries_ = 0;
  std::string out_;
};

}  // namespace

std::string source(const LoopNest& nest, Entry entry) { return Printer(nest, entry).run(); }

}  // namespace trainc::emit::cuda
