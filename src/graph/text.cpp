// Printer and parser of the textual form. A line:
//   %name = op %a %b key=value ... : f32[8,64]   // origin | origin
// before the lines, where the last inputs are not used: `inputs 5`; at the end: `return %4 %3:strides=[1,8] none`.
#include "graph/text.h"

#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "graph/attrs.h"
#include "graph/verify.h"

namespace trainc {
namespace {

// in the order of ReduceKind
constexpr std::string_view kReduceKinds[] = {"sum", "prod", "max", "min", "argmax", "argmin"};
constexpr std::string_view kScatterKinds[] = {"sum", "last"};

std::string list(const Dims& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += (i ? "," : "") + std::to_string(dims[i]);
  return text + "]";
}

std::string quoted(std::string_view raw) {
  std::string text = "\"";
  for (char c : raw) {
    if (c == '"' || c == '\\') text += '\\';
    if (c == '\n') text += "\\n";
    else text += c;
  }
  return text + '"';
}

/// Shortest decimal that reads back to the same bits; a NaN with another pattern than the usual as bits.
std::string constant_text(const Node& node) {
  const uint64_t bits = node.as<ConstantAttr>().bits;
  if (!is_float(node.dtype())) return fmt::format(" value={}", static_cast<int64_t>(bits));
  const double value = std::bit_cast<double>(bits);
  if (std::isnan(value) && bits != std::bit_cast<uint64_t>(std::numeric_limits<double>::quiet_NaN()))
    return fmt::format(" bits={:#x}", bits);
  return fmt::format(" value={}", value);
}

struct AttrPrinter {
  const Node& node;
  std::string operator()(const NoAttr&) const { return ""; }
  std::string operator()(const InputAttr& a) const {
    return fmt::format(" index={}", a.index) + (a.strides.empty() ? "" : " strides=" + list(a.strides)) +
           (a.late ? " late=true" : "");
  }
  std::string operator()(const ConstantAttr&) const { return constant_text(node); }
  std::string operator()(const RandomAttr& a) const {
    return fmt::format(" draw={} p={}", a.draw, a.p) +
           (a.threads ? fmt::format(" threads={} vector={}", a.threads, a.vector) : "");
  }
  std::string operator()(const ReduceAttr& a) const {
    return fmt::format(" kind={} axes={}", kReduceKinds[static_cast<int>(a.kind)], list(a.axes));
  }
  std::string operator()(const AxisAttr& a) const { return fmt::format(" axis={}", a.axis) + failure(a.failure); }
  static std::string failure(Failure f) { return f == Failure::Index ? "" : fmt::format(" failure={}", text_of(f)); }
  std::string operator()(const AxesAttr& a) const {
    return (node.op == Op::Permute ? " order=" : " axes=") + list(a.axes);
  }
  std::string operator()(const SliceAttr& a) const { return " start=" + list(a.start) + " step=" + list(a.step); }
  std::string operator()(const PadAttr& a) const { return " low=" + list(a.low) + " high=" + list(a.high); }
  std::string operator()(const WindowAttr& a) const {
    return " axes=" + list(a.axes) + " size=" + list(a.size) + " step=" + list(a.step) +
           " dilation=" + list(a.dilation);
  }
  std::string operator()(const ScatterAttr& a) const {
    return fmt::format(" axis={} kind={}", a.axis, kScatterKinds[static_cast<int>(a.kind)]) + failure(a.failure);
  }
  std::string operator()(const ExternAttr& a) const {
    std::string text = " target=" + quoted(a.target) + " arguments=" + quoted(a.arguments) + " results=[";
    for (size_t i = 0; i < a.results.size(); ++i) text += (i ? "," : "") + to_string(a.results[i]);
    text += "]";
    if (a.random) text += fmt::format(" random=true draw={}", a.draw);
    if (a.may_draw) text += " may_draw=true";
    if (!a.aliases.empty()) text += " aliases=" + list(a.aliases);
    if (!a.reason.empty()) text += " reason=" + quoted(a.reason);
    return text;
  }
  std::string operator()(const ResultAttr& a) const { return fmt::format(" index={}", a.index); }
};

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Graph parse() {
    bool returned = false;
    for (skip_lines(); at_ < text_.size(); skip_lines()) {
      if (returned) fail("a line after return");
      if (peek() == '%') node();
      else if (accept_word("inputs")) graph_.input_count = std::max(graph_.input_count, number());
      else if (accept_word("effects")) effects();
      else if (accept_word("return")) {
        results();
        returned = true;
      } else fail("expected a node, `inputs`, `effects` or `return`");
      end_of_line();
    }
    if (!returned) fail("no return line");
    trainc::verify(graph_);
    return std::move(graph_);
  }

 private:
  std::string_view text_;
  size_t at_ = 0;
  Graph graph_;
  std::map<std::string, const Node*, std::less<>> names_;

  [[noreturn]] void fail(const std::string& what) const {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < std::min(at_, text_.size()); ++i) {
      if (text_[i] == '\n') {
        ++line;
        column = 1;
      } else ++column;
    }
    throw InternalError(fmt::format("graph text {}:{}: {}", line, column, what));
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_blanks() {
    while (peek() == ' ' || peek() == '\t' || peek() == '\r') ++at_;
  }
  bool at_comment() const { return text_.substr(at_).starts_with("//"); }
  void skip_lines() {
    for (;;) {
      skip_blanks();
      if (at_comment())
        while (at_ < text_.size() && peek() != '\n') ++at_;
      if (peek() != '\n') return;
      ++at_;
    }
  }
  bool accept(char c) {
    skip_blanks();
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(fmt::format("expected '{}'", c));
  }
  static bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; }
  std::string_view word() {
    skip_blanks();
    const size_t from = at_;
    while (is_word(peek())) ++at_;
    if (from == at_) fail("expected a word");
    return text_.substr(from, at_ - from);
  }
  bool accept_word(std::string_view wanted) {
    skip_blanks();
    const size_t from = at_;
    if (is_word(peek()) && word() == wanted) return true;
    at_ = from;
    return false;
  }
  int64_t number() {
    skip_blanks();
    int64_t value;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc()) fail("expected an integer");
    at_ = end - text_.data();
    return value;
  }
  double real() {
    skip_blanks();
    double value;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc()) fail("expected a number");
    at_ = end - text_.data();
    return value;
  }
  Dims dims() {
    Dims values;
    expect('[');
    if (accept(']')) return values;
    do values.push_back(number());
    while (accept(','));
    expect(']');
    return values;
  }
  Type type() {
    const size_t from = at_;
    try {
      Type t;
      t.dtype = dtype_of(word());
      t.shape = dims();
      return t;
    } catch (const InternalError& e) {
      if (std::string_view(e.what()).starts_with("graph text")) throw;
      at_ = from;
      fail(e.what());
    }
  }
  std::string string() {
    expect('"');
    std::string value;
    while (peek() != '"') {
      if (peek() == '\0' || peek() == '\n') fail("a string does not end");
      if (peek() == '\\') {
        ++at_;
        value += peek() == 'n' ? '\n' : peek();
      } else {
        value += peek();
      }
      ++at_;
    }
    ++at_;
    return value;
  }
  template <class Kind, size_t N> Kind kind(const std::string_view (&names)[N]) {
    const std::string_view text = word();
    for (size_t i = 0; i < N; ++i)
      if (names[i] == text) return static_cast<Kind>(i);
    fail("no such kind");
  }
  const Node* value() {
    expect('%');
    const std::string_view name = word();
    const auto found = names_.find(name);
    if (found == names_.end()) fail(fmt::format("%{} is not known here", name));
    return found->second;
  }
  void end_of_line() {
    skip_blanks();
    if (at_comment())
      while (at_ < text_.size() && peek() != '\n') ++at_;
    if (peek() != '\n' && at_ < text_.size()) fail("expected the end of the line");
  }

  // One struct an attribute kind: reads the value of `key`; false where there is none of that name.
  bool read(std::string_view, NoAttr&) { return false; }
  bool read(std::string_view key, InputAttr& a) {
    if (key == "index") a.index = number();
    else if (key == "strides") a.strides = dims();
    else if (key == "late") a.late = word() == "true";
    else return false;
    return true;
  }
  bool read(std::string_view key, ConstantAttr& a) {
    // What the number means depends on the dtype, which comes last: the text is kept, and read by finish_constant.
    if (key != "value" && key != "bits") return false;
    skip_blanks();
    constant_is_bits_ = key == "bits";
    const size_t from = at_;
    while (is_word(peek()) || peek() == '-' || peek() == '+') ++at_;
    constant_ = text_.substr(from, at_ - from);
    a.bits = 0;
    return true;
  }
  bool read(std::string_view key, RandomAttr& a) {
    if (key == "draw") a.draw = number();
    else if (key == "p") a.p = real();
    else if (key == "threads") a.threads = number();
    else if (key == "vector") a.vector = number();
    else return false;
    return true;
  }
  bool read(std::string_view key, ReduceAttr& a) {
    if (key == "kind") a.kind = kind<ReduceKind>(kReduceKinds);
    else if (key == "axes") a.axes = dims();
    else return false;
    return true;
  }
  bool read(std::string_view key, AxisAttr& a) {
    if (key == "axis") a.axis = number();
    else if (key == "failure") a.failure = failure_of(word());
    else return false;
    return true;
  }
  bool read(std::string_view key, AxesAttr& a) {
    if (key == "axes" || key == "order") a.axes = dims();
    else return false;
    return true;
  }
  bool read(std::string_view key, SliceAttr& a) {
    if (key == "start") a.start = dims();
    else if (key == "step") a.step = dims();
    else return false;
    return true;
  }
  bool read(std::string_view key, PadAttr& a) {
    if (key == "low") a.low = dims();
    else if (key == "high") a.high = dims();
    else return false;
    return true;
  }
  bool read(std::string_view key, WindowAttr& a) {
    if (key == "axes") a.axes = dims();
    else if (key == "size") a.size = dims();
    else if (key == "step") a.step = dims();
    else if (key == "dilation") a.dilation = dims();
    else return false;
    return true;
  }
  bool read(std::string_view key, ScatterAttr& a) {
    if (key == "axis") a.axis = number();
    else if (key == "kind") a.kind = kind<ScatterKind>(kScatterKinds);
    else if (key == "failure") a.failure = failure_of(word());
    else return false;
    return true;
  }
  bool read(std::string_view key, ExternAttr& a) {
    if (key == "target") a.target = string();
    else if (key == "arguments") a.arguments = string();
    else if (key == "random") a.random = word() == "true";
    else if (key == "draw") a.draw = number();
    else if (key == "may_draw") a.may_draw = word() == "true";
    else if (key == "aliases") a.aliases = dims();
    else if (key == "reason") a.reason = string();
    else if (key == "results") {
      expect('[');
      if (accept(']')) return true;
      do a.results.push_back(type());
      while (accept(','));
      expect(']');
    } else return false;
    return true;
  }
  bool read(std::string_view key, ResultAttr& a) {
    if (key == "index") a.index = number();
    else return false;
    return true;
  }

  std::string_view constant_;
  bool constant_is_bits_ = false;
  void finish_constant(ConstantAttr& a, DType dtype) {
    const char *from = constant_.data(), *to = from + constant_.size();
    std::from_chars_result r{};
    if (constant_is_bits_) {
      if (constant_.starts_with("0x")) from += 2;
      r = std::from_chars(from, to, a.bits, 16);
    } else if (is_float(dtype)) {
      double value = 0;
      r = std::from_chars(from, to, value);
      if (std::isnan(value)) value = std::numeric_limits<double>::quiet_NaN();
      a.bits = std::bit_cast<uint64_t>(value);
    } else {
      int64_t value = 0;
      r = std::from_chars(from, to, value);
      a.bits = static_cast<uint64_t>(value);
    }
    if (constant_.empty() || r.ec != std::errc() || r.ptr != to)
      fail(fmt::format("'{}' is no value of {}", constant_, name_of(dtype)));
  }

  static std::optional<Op> op_of(std::string_view text) {
#define OP(Name, word, inputs, Class, meaning) \
  if (text == word) return Op::Name;
#include "graph/ops.def"
    return std::nullopt;
  }

  void node() {
    const size_t start = at_;
    expect('%');
    const std::string name(word());
    if (names_.contains(name)) fail(fmt::format("%{} is defined twice", name));
    expect('=');
    const std::string_view op_text = word();
    const std::optional<Op> op = op_of(op_text);
    if (!op) fail(fmt::format("no operation is called '{}'", op_text));
    std::vector<const Node*> inputs;
    for (skip_blanks(); peek() == '%'; skip_blanks()) inputs.push_back(value());
    Attrs attrs = attrs_of(*op);
    constant_ = {};
    while (!accept(':')) {
      const std::string_view key = word();
      expect('=');
      if (!std::visit([&](auto& a) { return read(key, a); }, attrs)) fail(fmt::format("{} has no '{}'", op_text, key));
    }
    Type node_type = type();
    if (*op == Op::Constant) finish_constant(std::get<ConstantAttr>(attrs), node_type.dtype);
    if (*op == Op::Input) graph_.input_count = std::max(graph_.input_count, std::get<InputAttr>(attrs).index + 1);
    const Node* made;
    try {
      made = graph_.make(*op, std::move(attrs), std::move(inputs), std::move(node_type));
    } catch (const InternalError& e) {
      at_ = start;
      fail(e.what());
    }
    names_.emplace(name, made);
    skip_blanks();
    if (at_comment()) origins(made);
  }

  void origins(const Node* made) {
    std::string_view rest = text_.substr(at_ + 2);
    rest = rest.substr(0, rest.find('\n'));
    while (!rest.empty()) {
      const size_t bar = rest.find(" | ");
      std::string_view one = rest.substr(0, bar);
      while (one.starts_with(' ')) one.remove_prefix(1);
      while (one.ends_with(' ') || one.ends_with('\r')) one.remove_suffix(1);
      graph_.add_origin(made, one);
      rest = bar == std::string_view::npos ? "" : rest.substr(bar + 3);
    }
  }

  void effects() {
    for (skip_blanks(); peek() == '%'; skip_blanks()) graph_.effects.push_back(value());
  }

  void results() {
    for (skip_blanks(); peek() == '%' || peek() == 'n'; skip_blanks()) {
      if (peek() == 'n') {
        if (!accept_word("none")) fail("expected a value or `none`");
        graph_.outputs.push_back({});
        continue;
      }
      Output output{value(), {}};
      if (peek() == ':') {
        ++at_;
        if (!accept_word("strides")) fail("expected `strides`");
        expect('=');
        output.strides = dims();
      }
      graph_.outputs.push_back(std::move(output));
    }
  }
};

}  // namespace

std::string print(const Graph& graph) {
  const std::vector<const Node*> nodes = graph.live();
  std::unordered_map<const Node*, size_t> number;
  std::string text;
  int64_t inputs = 0;
  for (const Node* node : nodes)
    if (node->op == Op::Input) inputs = std::max(inputs, node->as<InputAttr>().index + 1);
  if (inputs != graph.input_count) text += fmt::format("inputs {}\n", graph.input_count);
  for (const Node* node : nodes) {
    const size_t n = number.size();
    number[node] = n;
    text += fmt::format("%{} = {}", n, name_of(node->op));
    for (const Node* in : node->inputs) text += fmt::format(" %{}", number.at(in));
    text += std::visit(AttrPrinter{*node}, node->attrs) + " : " + to_string(node->type);
    std::string_view separator = "   // ";
    for (std::string origin : graph.origins(node)) {
      for (char& c : origin) c = c == '\n' ? ' ' : c;
      text += std::string(separator) + origin;
      separator = " | ";
    }
    text += '\n';
  }
  if (!graph.effects.empty()) {
    text += "effects";
    for (const Node* effect : graph.effects) text += fmt::format(" %{}", number.at(effect));
    text += '\n';
  }
  text += "return";
  for (const Output& output : graph.outputs) {
    if (!output.value) text += " none";
    else
      text += fmt::format(" %{}", number.at(output.value)) +
              (output.strides.empty() ? "" : ":strides=" + list(output.strides));
  }
  return text + '\n';
}

Graph parse(std::string_view text) { return Parser(text).parse(); }

}  // namespace trainc
