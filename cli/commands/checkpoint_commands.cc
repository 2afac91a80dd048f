// Implements muster checkpoint: list, save, get, verify, delete, diff, export.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "cli/commands/session.h"
#include "cli/framework/exit_code.h"
#include "cli/framework/interrupt.h"
#include "cli/text/job_text.h"
#include "google/protobuf/struct.pb.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/graph/onnx/onnx_import.h"
#include "lib/job/resource_name.h"
#include "lib/status/status.h"
#include "lib/text/byte_size.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;

absl::Status List(const std::string& job, const Session& session) {
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  ASSIGN_OR_RETURN(const v1::ListCheckpointsResponse response, client.ListCheckpoints(job));
  const std::vector<v1::Checkpoint> checkpoints(response.checkpoints().begin(),
                                                response.checkpoints().end());
  std::string names;
  for (const v1::Checkpoint& checkpoint : checkpoints) {
    absl::StrAppend(&names, CheckpointIdOf(checkpoint.name()), "\n");
  }
  session.Print(response, CheckpointTable(checkpoints, absl::Now()), names);
  if (checkpoints.empty()) {
    session.TellEmpty(job.empty() ? "checkpoints" : absl::StrCat("checkpoints of ", job), client);
  }
  return absl::OkStatus();
}

absl::Status Save(const std::string& job, const Session& session) {
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  ASSIGN_OR_RETURN(const v1::Checkpoint checkpoint, client.SaveCheckpoint(job));
  session.Print(checkpoint, CheckpointTable({checkpoint}, absl::Now()),
                absl::StrCat(CheckpointIdOf(checkpoint.name()), "\n"));
  return absl::OkStatus();
}

absl::Status Get(const std::string& name, const std::string& directory, const Session& session) {
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  RETURN_IF_ERROR(client.DownloadCheckpoint(name, directory, session.interrupt));
  std::printf("%s\n", directory.c_str());
  return absl::OkStatus();
}

absl::Status VerifyDirectory(const std::string& directory, const std::string& shown,
                             const Session& session) {
  ASSIGN_OR_RETURN(auto checkpoint, CheckpointReader::Open(directory));
  RETURN_IF_ERROR(checkpoint->Verify());
  const v1::Checkpoint proto = checkpoint->ToProto(checkpoint->manifest().job);
  session.Print(proto,
                absl::StrCat("OK  ", shown, ": step ", proto.step(), ", ", proto.files_size(),
                             " files, ", FormatBytes(proto.size_bytes()), "\n"),
                absl::StrCat(shown, "\n"));
  return absl::OkStatus();
}

// Calls `use` with a local directory. A checkpoint of the coordinator is downloaded for it, and
// removed afterwards.
absl::Status WithDirectory(const std::string& path_or_name, const Session& session,
                           absl::FunctionRef<absl::Status(const std::string&)> use) {
  std::error_code error;
  if (fs::is_directory(path_or_name, error)) return use(path_or_name);
  if (!ParseCheckpointRef(path_or_name)) {
    return absl::NotFoundError(absl::StrCat(path_or_name, ": no such directory"));
  }
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  std::string folder = fs::temp_directory_path(error).string() + "/muster-verify-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat(folder, ": cannot make the folder"));
  }
  const auto remove_folder = [&folder] {
    std::error_code gone;
    fs::remove_all(folder, gone);
  };
  const absl::Cleanup remove = remove_folder;
  const std::string copy = folder + "/checkpoint";
  RETURN_IF_ERROR(client.DownloadCheckpoint(path_or_name, copy, session.interrupt));
  // `use` may take long and does not check for signals. A signal therefore removes the copy and
  // ends the process at once.
  std::optional<Interrupt::Registration> on_signal;
  if (session.interrupt != nullptr) {
    on_signal.emplace(*session.interrupt, [&] {
      remove_folder();
      std::_Exit(session.SignalExitCode());
    });
  }
  return use(copy);
}

absl::Status Verify(const std::string& path_or_name, const Session& session) {
  return WithDirectory(path_or_name, session, [&](const std::string& directory) {
    return VerifyDirectory(directory, path_or_name, session);
  });
}

struct ExportOptions {
  std::string checkpoint;
  std::string onnx;    // the file to write
  std::string source;  // the original file; "": the one that the job names
};

// Writes the ONNX file of the job's model with the values of the checkpoint.
absl::Status ExportDirectory(const std::string& directory, const ExportOptions& options) {
  ASSIGN_OR_RETURN(const auto checkpoint, CheckpointReader::Open(directory));
  v1::OnnxModel model = checkpoint->manifest().spec.model().onnx();
  if (!options.source.empty()) model.set_path(options.source);
  if (model.path().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.checkpoint, ": its model is not from an ONNX file; name one with --source"));
  }
  ASSIGN_OR_RETURN(const ImportedModel imported, ImportOnnx(model));
  RETURN_IF_ERROR(checkpoint->CheckFits(imported.graph));
  absl::flat_hash_map<std::string, std::vector<float>> values;
  for (int p = 0; p < imported.graph.parameters_size(); ++p) {
    const std::string& name = imported.graph.parameters(p).name();
    std::vector<float>& own = values[name];
    own.resize(imported.initial_values[p].size());
    RETURN_IF_ERROR(checkpoint->Read(name, /*slot=*/"", /*offset=*/0, absl::MakeSpan(own)));
  }
  return ExportOnnx(model, options.onnx, values);
}

absl::Status Export(const ExportOptions& options, const Session& session) {
  RETURN_IF_ERROR(WithDirectory(options.checkpoint, session, [&](const std::string& directory) {
    return ExportDirectory(directory, options);
  }));
  std::printf("%s\n", options.onnx.c_str());
  return absl::OkStatus();
}

absl::Status Delete(const std::vector<std::string>& names, Session& session) {
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  absl::Status first;
  for (const std::string& name : names) {
    const absl::Status deleted = client.DeleteCheckpoint(name);
    if (deleted.ok()) std::fprintf(stderr, "%s deleted\n", name.c_str());
    if (!first.ok()) session.Fail(deleted);
    first.Update(deleted);
  }
  return first;
}

// The distance of one parameter in two checkpoints.
struct Distance {
  double largest = 0;  // largest absolute difference of two elements
  double norm = 0;     // L2 norm of the differences
  double base = 0;     // L2 norm of the first checkpoint's values
  int64_t differing = 0;
};

absl::StatusOr<Distance> Compare(const CheckpointReader& a, const CheckpointReader& b,
                                 const std::string& parameter, int64_t elements) {
  constexpr int64_t kAtOnce = 1 << 20;
  Distance distance;
  std::vector<float> left, right;
  for (int64_t offset = 0; offset < elements; offset += kAtOnce) {
    const int64_t count = std::min(kAtOnce, elements - offset);
    left.resize(count);
    right.resize(count);
    RETURN_IF_ERROR(a.Read(parameter, /*slot=*/"", offset, absl::MakeSpan(left)));
    RETURN_IF_ERROR(b.Read(parameter, /*slot=*/"", offset, absl::MakeSpan(right)));
    for (int64_t i = 0; i < count; ++i) {
      const double difference = static_cast<double>(right[i]) - left[i];
      distance.base += static_cast<double>(left[i]) * left[i];
      distance.norm += difference * difference;
      if (difference == 0) continue;  // NaN counts as different
      ++distance.differing;
      // A NaN counts as the largest difference, although every comparison with it is false.
      if (!std::isnan(distance.largest) && !(std::abs(difference) <= distance.largest)) {
        distance.largest = std::abs(difference);
      }
    }
  }
  distance.norm = std::sqrt(distance.norm);
  distance.base = std::sqrt(distance.base);
  return distance;
}

absl::Status DiffDirectories(const std::string& left, const std::string& right, Session& session) {
  ASSIGN_OR_RETURN(const auto a, CheckpointReader::Open(left));
  ASSIGN_OR_RETURN(const auto b, CheckpointReader::Open(right));
  const auto first = a->Shapes(), second = b->Shapes();
  Table table({"PARAMETER", "ELEMENTS", "DIFFERENT", "LARGEST", "RELATIVE"});
  google::protobuf::Struct report;
  auto& list = *(*report.mutable_fields())["parameters"].mutable_list_value();
  std::string names;
  auto add = [&](const std::string& name) -> auto& {
    auto& fields = *list.add_values()->mutable_struct_value()->mutable_fields();
    fields["name"].set_string_value(name);
    absl::StrAppend(&names, name, "\n");
    return fields;
  };
  auto add_unlike = [&](const std::string& name, const std::string& what) {
    table.Add({name, what});
    add(name)["what"].set_string_value(what);
  };
  for (const auto& [name, shape] : first) {
    const auto other = second.find(name);
    if (other == second.end()) {
      add_unlike(name, "only in the first");
      continue;
    }
    if (other->second != shape) {
      add_unlike(name, "another shape");
      continue;
    }
    int64_t elements = 1;
    for (const int64_t extent : shape) elements *= extent;
    ASSIGN_OR_RETURN(const Distance distance, Compare(*a, *b, name, elements));
    if (distance.differing == 0) continue;
    table.Add({name, absl::StrCat(elements), absl::StrCat(distance.differing),
               absl::StrFormat("%.3g", distance.largest),
               absl::StrFormat("%.3g", distance.norm / std::max(distance.base, 1e-300))});
    auto& fields = add(name);
    fields["elements"].set_number_value(static_cast<double>(elements));
    fields["different"].set_number_value(static_cast<double>(distance.differing));
    fields["largest"].set_number_value(distance.largest);
    fields["norm"].set_number_value(distance.norm);
    fields["first_norm"].set_number_value(distance.base);
  }
  for (const auto& [name, shape] : second) {
    if (!first.contains(name)) add_unlike(name, "only in the second");
  }
  if (names.empty()) {
    session.Print(report, absl::StrCat("the same values in ", first.size(), " parameters\n"), "");
    return absl::OkStatus();
  }
  session.Print(report, table.ToString(), names);
  session.exit_code = kExitJobFailed;  // like diff(1)
  return absl::OkStatus();
}

absl::Status Diff(const std::string& left, const std::string& right, Session& session) {
  return WithDirectory(left, session, [&](const std::string& a) {
    return WithDirectory(right, session,
                         [&](const std::string& b) { return DiffDirectories(a, b, session); });
  });
}

}  // namespace

void AddCheckpointCommands(Command program, Session& session) {
  Command checkpoint =
      program.AddCommand("checkpoint", "Checkpoints of jobs", "muster checkpoint list char-gpt-7");
  checkpoint.RequireCommand();

  auto name = std::make_shared<std::string>();
  Command list = checkpoint.AddCommand("list", "List those of one job or of all",
                                       "muster checkpoint list char-gpt-7");
  list.AddOption("JOB", *name, "Its id; default: all jobs");
  list.SetAction([name, &session] { session.Fail(List(*name, session)); });

  Command save = checkpoint.AddCommand("save", "Save one now, while the job runs",
                                       "muster checkpoint save char-gpt-7");
  save.AddOption("JOB", *name, "Its id").Required();
  save.SetAction([name, &session] { session.Fail(Save(*name, session)); });

  auto directory = std::make_shared<std::string>();
  Command get = checkpoint.AddCommand("get", "Download one",
                                      "muster checkpoint get char-gpt-7@1000 ./checkpoint");
  get.AddOption("NAME", *name, "JOB@STEP, or JOB for its last").Required();
  get.AddOption("DEST", *directory, "Folder to create").Required();
  get.SetAction([name, directory, &session] { session.Fail(Get(*name, *directory, session)); });

  Command verify = checkpoint.AddCommand("verify", "Check sizes and SHA-256 of its files",
                                         "muster checkpoint verify ./checkpoint");
  verify.AddOption("PATH_OR_NAME", *name, "Folder here, or JOB@STEP").Required();
  verify.SetAction([name, &session] { session.Fail(Verify(*name, session)); });

  auto names = std::make_shared<std::vector<std::string>>();
  Command remove =
      checkpoint.AddCommand("delete", "Delete some; a job's last one stays",
                            "muster checkpoint delete char-gpt-7@1000 char-gpt-7@2000");
  remove.AddOption("NAME", *names, "JOB@STEP; several may be given").Required();
  remove.SetAction([names, &session] { session.Fail(Delete(*names, session)); });

  auto other = std::make_shared<std::string>();
  Command diff = checkpoint.AddCommand("diff", "Which parameters differ, and how far",
                                       "muster checkpoint diff char-gpt-7@1000 char-gpt-7@2000");
  diff.AddOption("FIRST", *name, "Folder here, or JOB@STEP").Required();
  diff.AddOption("SECOND", *other, "Folder, or JOB@STEP; exit code 1 on difference").Required();
  diff.SetAction([name, other, &session] { session.Fail(Diff(*name, *other, session)); });

  auto options = std::make_shared<ExportOptions>();
  Command to = checkpoint.AddCommand("export", "Write trained weights back as ONNX",
                                     "muster checkpoint export resnet-7 --onnx trained.onnx");
  to.AddOption("PATH_OR_NAME", options->checkpoint, "Folder here, JOB@STEP, or JOB for its last")
      .Required();
  to.AddOption("--onnx", options->onnx, "File to write, in inference form").Required();
  to.AddOption("--source", options->source, "The original ONNX file; default: model.onnx.path");
  to.SetAction([options, &session] { session.Fail(Export(*options, session)); });
}

}  // namespace muster::cli
