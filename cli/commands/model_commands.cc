// Implements muster model describe.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/commands/model_choice.h"
#include "cli/commands/session.h"
#include "google/protobuf/struct.pb.h"
#include "lib/data/input_use.h"
#include "lib/engine/backends/backends.h"
#include "lib/engine/executor.h"
#include "lib/graph/cost.h"
#include "lib/graph/dtype.h"
#include "lib/graph/lowering/lowering.h"
#include "lib/graph/model/model.h"
#include "lib/graph/shape_inference.h"
#include "lib/status/status.h"
#include "lib/text/byte_size.h"

namespace muster::cli {
namespace {

// A node of the forward graph with its parameters and cost.
struct Layer {
  std::string name;
  std::string op;
  std::string output;  // type of its first output
  int64_t parameters = 0;
  int64_t flops = 0;  // forward
};

// An input or output of the model.
struct Port {
  std::string name;
  TensorType type;
  std::string note;  // allowed values of an input, or use of an output
};

struct Description {
  std::vector<Layer> layers;
  std::vector<Port> inputs, outputs;
  // Empty unless the model is an ONNX file.
  std::vector<InitializerDecision> initializers;
  std::vector<std::string> notes, warnings;
  ParameterCount parameters;
  TrainingCost cost;
  int64_t activation_bytes = 0;
  int64_t parameter_bytes = 0;  // values and gradients on the device
  int64_t available_bytes = 0;
  std::string device;

  int64_t needed_bytes() const { return activation_bytes + parameter_bytes; }
  bool fits() const { return needed_bytes() <= available_bytes; }
};

std::vector<Layer> LayersOf(const v1::Graph& graph, const TensorTypes& types) {
  absl::flat_hash_map<std::string, int64_t> sizes;  // of parameters without a layer yet
  for (const v1::Parameter& parameter : graph.parameters()) {
    sizes[parameter.name()] = types.at(parameter.name()).elements();
  }
  std::vector<Layer> layers;
  for (const v1::Node& node : graph.nodes()) {
    if (node.op() == "Constant") continue;
    Layer layer{.name = node.name(),
                .op = node.op(),
                .output = types.at(node.outputs(0)).ToString(),
                .flops = NodeCost(node, types).flops};
    for (const std::string& input : node.inputs()) {
      // A shared parameter counts only for the first layer that uses it.
      if (const auto size = sizes.find(input); size != sizes.end()) {
        layer.parameters += size->second;
        sizes.erase(size);
      }
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

std::vector<Port> InputsOf(const v1::Graph& graph, const TensorTypes& types) {
  const std::vector<InputUse> uses = UsesOfInputs(graph);
  std::vector<Port> inputs;
  for (int i = 0; i < graph.inputs_size(); ++i) {
    const std::string& name = graph.inputs(i).name();
    inputs.push_back({name, types.at(name), ToText(uses[i])});
  }
  return inputs;
}

// Returns the outputs of the ONNX file, then the other outputs of the graph.
std::vector<Port> OutputsOf(const v1::ModelSpec& spec, const Model& model, const TensorTypes& types,
                            int64_t batch) {
  const v1::Graph& graph = model.graph;
  std::vector<Port> outputs;
  for (const OnnxOutput& output : model.outputs) {
    Port port{.name = output.name, .type = {.dtype = output.dtype}};
    for (const int64_t size : output.shape) {
      port.type.shape.push_back(size < 0 ? -size * batch : size);
    }
    const bool is_read = model.outputs.size() == 1 || output.name == spec.onnx().logits();
    port.note = is_read ? "the loss reads it" : "not used";
    outputs.push_back(std::move(port));
  }
  const std::pair<std::string, const char*> own[] = {{graph.logits(), "the loss reads it"},
                                                     {graph.loss(), "the loss"},
                                                     {graph.correct(), "right predictions"}};
  for (const auto& [name, note] : own) {
    if (name.empty() || std::ranges::count(outputs, name, &Port::name) > 0) continue;
    const bool is_alias = !model.outputs.empty() && name == graph.logits();
    if (!is_alias) outputs.push_back({name, types.at(name), note});
  }
  return outputs;
}

absl::StatusOr<Description> Describe(const v1::ModelSpec& spec, const ModelChoice& choice) {
  ASSIGN_OR_RETURN(const Model model, LoadModel(spec));
  ASSIGN_OR_RETURN(const auto device, CreateDevice(choice.device, choice.Threads()));
  Description description{.parameters = CountParameters(model.graph),
                          .available_bytes = device->available_bytes(),
                          .device = absl::StrCat(device->name(), " (", device->description(), ")")};
  description.initializers = model.initializers;
  description.notes = model.notes;
  description.warnings = model.warnings;
  ASSIGN_OR_RETURN(const TensorTypes types, InferTypes(model.graph, choice.batch));
  description.layers = LayersOf(model.graph, types);
  description.inputs = InputsOf(model.graph, types);
  description.outputs = OutputsOf(spec, model, types, choice.batch);
  ASSIGN_OR_RETURN(description.cost, GraphCost(model.graph, choice.batch));
  ASSIGN_OR_RETURN(const v1::Graph training,
                   TrainingGraph(model.graph, {.precision = choice.PrecisionValue()}));
  ASSIGN_OR_RETURN(const Executor::MemoryNeed need,
                   MemoryNeedOf(training, {.batch = choice.batch, .device = device.get()}));
  description.activation_bytes = need.arena_bytes;
  description.parameter_bytes = need.parameter_bytes;
  return description;
}

const char* RoleName(InitializerRole role) {
  return role == InitializerRole::kTrained     ? "trained"
         : role == InitializerRole::kStatistic ? "statistic"
                                               : "constant";
}

std::string PortText(const std::string& heading, const std::string& note,
                     const std::vector<Port>& ports) {
  Table table({heading, "TYPE", note});
  for (const Port& port : ports) table.Add({port.name, port.type.ToString(), port.note});
  return absl::StrCat("\n", table.ToString());
}

// Returns the role of each tensor of the file, and the notes and warnings of the importer.
std::string InitializerText(const Description& d) {
  if (d.initializers.empty()) return "";
  Table table({"TENSOR", "SHAPE", "ROLE", "WHY"});
  for (const InitializerDecision& tensor : d.initializers) {
    table.Add({tensor.name, absl::StrCat("[", absl::StrJoin(tensor.shape, ", "), "]"),
               absl::StrCat(RoleName(tensor.role), tensor.doubtful ? " ?" : ""), tensor.reason});
  }
  std::string text = absl::StrCat("\n", table.ToString());
  for (const std::string& note : d.notes) absl::StrAppend(&text, "\nnote: ", note);
  for (const std::string& warning : d.warnings) absl::StrAppend(&text, "\nwarning: ", warning);
  absl::StrAppend(&text, d.notes.empty() && d.warnings.empty() ? "" : "\n");
  return text;
}

std::string Text(const Description& d, const ModelChoice& choice) {
  Table table({"LAYER", "OP", "OUTPUT", "PARAMETERS", "GFLOP"});
  for (const Layer& layer : d.layers) {
    table.Add({layer.name, layer.op, layer.output,
               layer.parameters == 0 ? "" : FormatCount(static_cast<double>(layer.parameters)),
               layer.flops == 0 ? "" : absl::StrFormat("%.3f", layer.flops / 1e9)});
  }
  std::string text =
      absl::StrCat(table.ToString(), InitializerText(d), PortText("INPUT", "VALUES", d.inputs),
                   PortText("OUTPUT", "USE", d.outputs));
  absl::StrAppend(&text, "\nparameters    ", FormatCount(static_cast<double>(d.parameters.trained)),
                  " trained");
  if (d.parameters.statistic > 0) {
    absl::StrAppend(&text, ", ", FormatCount(static_cast<double>(d.parameters.statistic)),
                    " statistics");
  }
  absl::StrAppendFormat(&text, "\nbatch         %d, %s: %.3f GFLOP forward, %.3f GFLOP a step\n",
                        choice.batch, choice.precision, d.cost.forward.flops / 1e9,
                        (d.cost.forward.flops + d.cost.backward.flops) / 1e9);
  absl::StrAppend(&text, "memory        ", FormatBytes(d.activation_bytes), " activations + ",
                  FormatBytes(d.parameter_bytes),
                  " parameters and gradients = ", FormatBytes(d.needed_bytes()), "\ndevice        ",
                  d.device, ": ", FormatBytes(d.available_bytes), " available: ",
                  d.fits() ? "fits"
                           : "does NOT fit; use a smaller batch or training.micro_batch_size, "
                             "a larger resources.workers.logical, training.recompute, or bf16",
                  "\n");
  return text;
}

google::protobuf::ListValue Message(const std::vector<Port>& ports, const char* note) {
  google::protobuf::ListValue list;
  for (const Port& port : ports) {
    auto& own = *list.add_values()->mutable_struct_value()->mutable_fields();
    own["name"].set_string_value(port.name);
    own["type"].set_string_value(std::string(DTypeName(port.type.dtype)));
    own["shape"].mutable_list_value();
    for (const int64_t size : port.type.shape) {
      own["shape"].mutable_list_value()->add_values()->set_number_value(static_cast<double>(size));
    }
    own[note].set_string_value(port.note);
  }
  return list;
}

google::protobuf::Struct Message(const Description& d, const ModelChoice& choice) {
  google::protobuf::Struct message;
  auto& fields = *message.mutable_fields();
  const auto number = [&](const char* name, double value) { fields[name].set_number_value(value); };
  number("parameters_trained", static_cast<double>(d.parameters.trained));
  number("parameters_statistic", static_cast<double>(d.parameters.statistic));
  number("batch", static_cast<double>(choice.batch));
  number("forward_flops", static_cast<double>(d.cost.forward.flops));
  number("step_flops", static_cast<double>(d.cost.forward.flops + d.cost.backward.flops));
  number("activation_bytes", static_cast<double>(d.activation_bytes));
  number("parameter_bytes", static_cast<double>(d.parameter_bytes));
  number("available_bytes", static_cast<double>(d.available_bytes));
  fields["fits"].set_bool_value(d.fits());
  fields["precision"].set_string_value(choice.precision);
  fields["device"].set_string_value(d.device);
  *fields["inputs"].mutable_list_value() = Message(d.inputs, "values");
  *fields["outputs"].mutable_list_value() = Message(d.outputs, "use");
  auto& layers = *fields["layers"].mutable_list_value();
  for (const Layer& layer : d.layers) {
    auto& own = *layers.add_values()->mutable_struct_value()->mutable_fields();
    own["name"].set_string_value(layer.name);
    own["op"].set_string_value(layer.op);
    own["output"].set_string_value(layer.output);
    own["parameters"].set_number_value(static_cast<double>(layer.parameters));
    own["forward_flops"].set_number_value(static_cast<double>(layer.flops));
  }
  if (d.initializers.empty()) return message;
  auto& tensors = *fields["initializers"].mutable_list_value();
  for (const InitializerDecision& tensor : d.initializers) {
    auto& own = *tensors.add_values()->mutable_struct_value()->mutable_fields();
    own["name"].set_string_value(tensor.name);
    own["role"].set_string_value(RoleName(tensor.role));
    own["reason"].set_string_value(tensor.reason);
    own["doubtful"].set_bool_value(tensor.doubtful);
    for (int64_t size : tensor.shape) {
      own["shape"].mutable_list_value()->add_values()->set_number_value(static_cast<double>(size));
    }
  }
  for (const auto& [name, lines] :
       {std::pair("notes", &d.notes), std::pair("warnings", &d.warnings)}) {
    auto& list = *fields[name].mutable_list_value();
    for (const std::string& line : *lines) list.add_values()->set_string_value(line);
  }
  return message;
}

// Prints the parameters of an external model. Muster knows nothing else of it.
absl::Status PrintParameters(const v1::ModelSpec& spec, const Session& session) {
  ASSIGN_OR_RETURN(const Model model, LoadModel(spec));
  const ParameterCount count = CountParameters(model.graph);
  Table table({"PARAMETER", "SHAPE", "ROLE"});
  google::protobuf::Struct message;
  auto& fields = *message.mutable_fields();
  fields["parameters_trained"].set_number_value(static_cast<double>(count.trained));
  fields["parameters_statistic"].set_number_value(static_cast<double>(count.statistic));
  auto& list = *fields["parameters"].mutable_list_value();
  for (const v1::Parameter& parameter : model.graph.parameters()) {
    const char* role = RoleName(parameter.has_statistic_momentum() ? InitializerRole::kStatistic
                                                                   : InitializerRole::kTrained);
    table.Add(
        {parameter.name(), absl::StrCat("[", absl::StrJoin(parameter.shape(), ", "), "]"), role});
    auto& own = *list.add_values()->mutable_struct_value()->mutable_fields();
    own["name"].set_string_value(parameter.name());
    own["role"].set_string_value(role);
    own["shape"].mutable_list_value();
    for (const int64_t size : parameter.shape()) {
      own["shape"].mutable_list_value()->add_values()->set_number_value(static_cast<double>(size));
    }
  }
  std::string text = absl::StrCat(table.ToString(), "\nparameters    ",
                                  FormatCount(static_cast<double>(count.trained)), " trained");
  if (count.statistic > 0) {
    absl::StrAppend(&text, ", ", FormatCount(static_cast<double>(count.statistic)), " statistics");
  }
  session.Print(message, absl::StrCat(text, "\n"), absl::StrCat(count.trained, "\n"));
  return absl::OkStatus();
}

absl::Status PrintDescription(const ModelChoice& choice, const Session& session) {
  ASSIGN_OR_RETURN(const v1::ModelSpec spec, choice.Spec());
  if (spec.has_external()) return PrintParameters(spec, session);
  ASSIGN_OR_RETURN(const Description description, Describe(spec, choice));
  session.Print(Message(description, choice), Text(description, choice),
                absl::StrCat(description.parameters.trained, "\n"));
  return absl::OkStatus();
}

}  // namespace

void AddModelCommands(Command program, Session& session) {
  Command model = program.AddCommand("model", "Inspect models",
                                     "muster model describe --zoo resnet50 --batch 32");
  model.RequireCommand();
  auto choice = std::make_shared<ModelChoice>();
  Command describe =
      model.AddCommand("describe", "Layers, inputs, FLOPs, memory: does it fit?",
                       "muster model describe --zoo resnet50 --batch 32 --precision bf16");
  choice->AddOptions(describe);
  describe.SetAction([choice, &session] { session.Fail(PrintDescription(*choice, session)); });
}

}  // namespace muster::cli
