#include "lib/graph/graph_text.h"

#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"

namespace muster {
namespace {

using Pair = std::pair<absl::string_view, absl::string_view>;

// Returns the part before `separator`, and removes it, the separator and the spaces around it from
// `text`.
absl::string_view Take(absl::string_view& text, absl::string_view separator) {
  const size_t end = text.find(separator);
  CHECK_NE(end, absl::string_view::npos) << "no '" << separator << "' in '" << text << "'";
  const absl::string_view taken = absl::StripAsciiWhitespace(text.substr(0, end));
  text = absl::StripAsciiWhitespace(text.substr(end + separator.size()));
  return taken;
}

std::vector<absl::string_view> Items(absl::string_view list) {
  return absl::StrSplit(list, absl::ByAnyChar(", "), absl::SkipEmpty());
}

template <typename Shape>
void ParseShape(absl::string_view list, Shape* shape) {
  CHECK(absl::ConsumePrefix(&list, "[") && absl::ConsumeSuffix(&list, "]")) << list;
  for (absl::string_view item : Items(list)) {
    int64_t size;
    CHECK(absl::SimpleAtoi(item, &size)) << item;
    shape->Add(size);
  }
}

v1::Attribute ParseAttribute(absl::string_view value) {
  v1::Attribute attribute;
  int64_t integer;
  double number;
  if (value.front() == '[' && value.find('.') == absl::string_view::npos) {
    ParseShape(value, attribute.mutable_integers()->mutable_values());
  } else if (value.front() == '[') {
    for (absl::string_view item : Items(value.substr(1, value.size() - 2))) {
      CHECK(absl::SimpleAtod(item, &number)) << item;
      attribute.mutable_numbers()->add_values(number);
    }
  } else if (absl::SimpleAtoi(value, &integer)) {
    attribute.set_i(integer);
  } else if (absl::SimpleAtod(value, &number)) {
    attribute.set_f(number);
  } else {
    attribute.set_s(std::string(value));
  }
  return attribute;
}

void ParseAttributes(absl::string_view text, v1::Node& node) {
  while (!text.empty()) {
    const std::string name(Take(text, "="));
    const size_t end = text.find(text.front() == '[' ? ']' : ' ');
    const size_t size = end == absl::string_view::npos ? text.size() : end + 1;
    (*node.mutable_attributes())[name] =
        ParseAttribute(absl::StripAsciiWhitespace(text.substr(0, size)));
    text = absl::StripAsciiWhitespace(text.substr(size));
  }
}

void ParseNode(absl::string_view line, v1::Node& node) {
  const Pair made = absl::StrSplit(Take(line, "="), absl::MaxSplits('@', 1));
  for (absl::string_view output : Items(made.first)) node.add_outputs(std::string(output));
  node.set_op(std::string(Take(line, "(")));
  for (absl::string_view input : Items(Take(line, ")"))) node.add_inputs(std::string(input));
  node.set_name(made.second.empty() ? node.outputs(0) : std::string(made.second));
  ParseAttributes(line, node);
}

void ParseParameter(absl::string_view text, v1::Parameter& parameter) {
  parameter.set_name(std::string(Take(text, " ")));
  ParseShape(text, parameter.mutable_shape());
}

void ParseInput(absl::string_view text, v1::GraphInput& input) {
  input.set_name(std::string(Take(text, " ")));
  input.set_dtype(absl::ConsumePrefix(&text, "i32") ? v1::DTYPE_I32 : v1::DTYPE_F32);
  absl::ConsumePrefix(&text, "f32");
  ParseShape(text, input.mutable_shape());
}

}  // namespace

v1::Graph ParseGraph(absl::string_view text) {
  v1::Graph graph;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty()) continue;
    if (line.find('=') != absl::string_view::npos) {
      ParseNode(line, *graph.add_nodes());
    } else if (absl::ConsumePrefix(&line, "input ")) {
      ParseInput(line, *graph.add_inputs());
    } else if (absl::ConsumePrefix(&line, "parameter ")) {
      ParseParameter(line, *graph.add_parameters());
    } else if (absl::ConsumePrefix(&line, "statistic ")) {
      ParseParameter(line, *graph.add_parameters());
      graph.mutable_parameters()->rbegin()->set_statistic_momentum(0.1);
    } else if (absl::ConsumePrefix(&line, "loss ")) {
      graph.set_loss(std::string(line));
    } else if (absl::ConsumePrefix(&line, "logits ")) {
      graph.set_logits(std::string(line));
    } else if (absl::ConsumePrefix(&line, "correct ")) {
      graph.set_correct(std::string(line));
    } else {
      LOG(FATAL) << "not a statement: " << line;
    }
  }
  return graph;
}

std::vector<std::string> NodeLines(const v1::Graph& graph, int first) {
  std::vector<std::string> lines;
  for (int i = first; i < graph.nodes_size(); ++i) {
    const v1::Node& node = graph.nodes(i);
    lines.push_back(absl::StrCat(absl::StrJoin(node.outputs(), ", "), " = ", node.op(), "(",
                                 absl::StrJoin(node.inputs(), ", "), ")"));
  }
  return lines;
}

}  // namespace muster
