// Implements muster data.
#include "cli/commands/data_commands.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/commands/session.h"
#include "cli/data/inspection.h"
#include "cli/data/verification.h"
#include "cli/framework/exit_code.h"
#include "cli/local/job_check.h"
#include "google/protobuf/struct.pb.h"
#include "lib/data/file/file_list.h"
#include "lib/data/image/decode/image_decoder.h"
#include "lib/data/image/image_maker.h"
#include "lib/data/source/open_dataset.h"
#include "lib/graph/model/model.h"
#include "lib/job/job_file.h"
#include "lib/status/status.h"
#include "lib/text/byte_size.h"

namespace muster::cli {
namespace {

// The data of a job, and the model that reads them.
struct OpenedData {
  v1::DataSpec spec;
  v1::Graph graph;
  std::unique_ptr<const Dataset> dataset;
  absl::Duration time;  // that opening took
};

// Opens the data without replacements of damaged records.
absl::StatusOr<OpenedData> Open(const std::string& file, const DataOptions& options) {
  ASSIGN_OR_RETURN(const std::string text, ReadJobFile(file));
  ASSIGN_OR_RETURN(const v1::JobSpec spec, ParseJobFile(text, file));
  ASSIGN_OR_RETURN(Model model, LoadModel(spec.model()));
  OpenedData opened{.spec = spec.data(), .graph = std::move(model.graph)};
  const absl::Time start = absl::Now();
  auto dataset = OpenSource(opened.spec, opened.graph, options);
  opened.time = absl::Now() - start;
  if (!dataset.ok()) return LocateFaults(dataset.status(), text, file);
  opened.dataset = *std::move(dataset);
  return opened;
}

// Files of a source that has an index.
struct IndexedPath {
  std::string path;
  std::string extension;  // of the files of a folder; "": any
};

// Appends the paths of the source, or of the parts of a mixture.
void AddIndexedPaths(const v1::DataSpec& spec, std::vector<IndexedPath>& paths) {
  const auto add = [&](const auto& source, absl::string_view extension) {
    for (const std::string& path : {source.path(), source.eval_path()}) {
      if (!path.empty()) paths.push_back({path, std::string(extension)});
    }
  };
  add(spec.tar(), ".tar");
  add(spec.tfrecord(), "");
  add(spec.csv(), "");
  for (const v1::MixturePart& part : spec.mixture().parts()) AddIndexedPaths(part.data(), paths);
}

absl::Status MakeIndexFolder(const std::string& folder) {
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("--index-folder ", folder, ": cannot be made: ", error.message()));
}

std::string DescribeImage(absl::Span<const std::byte> file) {
  ImageDecoder decoder;
  const absl::StatusOr<ImageSize> size = decoder.Open(file);
  if (!size.ok()) return "";
  const char* const format = decoder.format() == ImageFormat::kJpeg  ? "JPEG"
                             : decoder.format() == ImageFormat::kPng ? "PNG"
                                                                     : "WebP";
  return absl::StrCat(format, ", ", size->width, " x ", size->height);
}

void SetNumber(google::protobuf::Struct& message, const std::string& name, int64_t value) {
  (*message.mutable_fields())[name].set_number_value(static_cast<double>(value));
}

}  // namespace

absl::Status PrintIndex(const std::string& file, const std::string& index_folder,
                        const MakeImageRows& make_image_rows, const Session& session) {
  RETURN_IF_ERROR(MakeIndexFolder(index_folder));
  ASSIGN_OR_RETURN(const OpenedData opened,
                   Open(file, {.index_folder = index_folder, .make_images = make_image_rows}));
  std::vector<IndexedPath> paths;
  AddIndexedPaths(opened.spec, paths);
  if (paths.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        file, ": data of this source need no index; it is made for csv, tar and tfrecord"));
  }
  int64_t bytes = 0, files = 0;
  for (const IndexedPath& one : paths) {
    ASSIGN_OR_RETURN(const auto listed, ListFiles(one.path, "data", {.extension = one.extension}));
    for (const ListedFile& listed_file : listed) bytes += listed_file.bytes;
    files += std::ssize(listed);
  }
  const Dataset& dataset = *opened.dataset;
  const std::string fingerprint = FactsOf(dataset, opened.spec, opened.graph).fingerprint();
  const double seconds = absl::ToDoubleSeconds(opened.time);
  google::protobuf::Struct message;
  SetNumber(message, "samples", dataset.samples());
  SetNumber(message, "evaluation_samples", dataset.evaluation_samples());
  SetNumber(message, "files", files);
  SetNumber(message, "bytes", bytes);
  (*message.mutable_fields())["seconds"].set_number_value(seconds);
  (*message.mutable_fields())["fingerprint"].set_string_value(fingerprint);
  const std::string where = index_folder.empty() ? "not kept; --index-folder FOLDER keeps it"
                                                 : absl::StrCat("in ", index_folder);
  session.Print(
      message,
      absl::StrCat("samples       ", dataset.samples(), " to train on, ",
                   dataset.evaluation_samples(), " held out\nfiles         ", files, ", ",
                   FormatBytes(bytes), "\nfingerprint   ", fingerprint, "\nindex         ", where,
                   absl::StrFormat("\ntime          %.2f s\n", seconds)),
      absl::StrCat(fingerprint, "\n"));
  return absl::OkStatus();
}

absl::Status PrintInspection(const std::string& path, const InspectOptions& options,
                             const Session& session) {
  ASSIGN_OR_RETURN(const Inspection inspection, Inspect(path, options));
  google::protobuf::Struct message;
  (*message.mutable_fields())["text"].set_string_value(inspection.text);
  (*message.mutable_fields())["section"].set_string_value(inspection.section);
  session.Print(
      message,
      absl::StrCat(inspection.text, inspection.section.empty() ? "" : "\n", inspection.section),
      inspection.section);
  return absl::OkStatus();
}

absl::Status PrintVerification(const std::string& file, const VerifyOptions& options,
                               const std::string& index_folder,
                               const MakeImageRows& make_image_rows, Session& session) {
  ASSIGN_OR_RETURN(const OpenedData opened,
                   Open(file, {.index_folder = index_folder, .make_images = make_image_rows}));
  ASSIGN_OR_RETURN(const Verification found, Verify(*opened.dataset, opened.graph, options));
  google::protobuf::Struct message;
  SetNumber(message, "samples", found.samples);
  SetNumber(message, "evaluation_samples", found.evaluation_samples);
  SetNumber(message, "damaged", found.damaged);
  auto& faults = *(*message.mutable_fields())["faults"].mutable_list_value();
  std::string text;
  for (const std::string& fault : found.faults) {
    faults.add_values()->set_string_value(fault);
    absl::StrAppend(&text, fault, "\n");
  }
  const int64_t others = found.damaged - std::ssize(found.faults);
  if (others > 0) absl::StrAppend(&text, "and ", others, " more\n");
  absl::StrAppend(&text, found.samples, " samples to train on and ", found.evaluation_samples,
                  " held-out ones: ", found.damaged, " damaged\n");
  session.Print(message, text, absl::StrCat(found.damaged, "\n"));
  if (found.damaged > 0) session.exit_code = kExitJobFailed;
  return absl::OkStatus();
}

void AddDataCommands(Command program, Session& session) {
  Command data = program.AddCommand("data", "Inspect, index and verify data",
                                    "muster data inspect /data/shards");
  data.RequireCommand();

  auto path = std::make_shared<std::string>();
  Command inspect = data.AddCommand("inspect", "What are these data? Prints a data: section",
                                    "muster data inspect '/data/shard-*.tar'");
  inspect.AddOption("PATH", *path, "A file, a folder or a pattern").Required();
  inspect.SetAction([path, &session] {
    session.Fail(PrintInspection(*path, {.describe_image = DescribeImage}, session));
  });

  auto file = std::make_shared<std::string>();
  auto folder = std::make_shared<std::string>();
  Command index = data.AddCommand("index", "Build the index of a job's data ahead",
                                  "muster data index job.yaml --index-folder /cache");
  index.AddOption("JOB_FILE", *file, "Job file whose data to index").Required();
  index.AddOption("--index-folder", *folder, "Folder of indexes, as the workers'");
  index.SetAction([file, folder, &session] {
    session.Fail(PrintIndex(*file, *folder, ImageMaker::Create, session));
  });

  auto options = std::make_shared<VerifyOptions>();
  options->threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  Command verify = data.AddCommand("verify", "Read every sample once; list damaged ones",
                                   "muster data verify job.yaml --limit 100");
  verify.AddOption("JOB_FILE", *file, "Job file whose data to read").Required();
  verify.AddOption("--index-folder", *folder, "Folder of indexes, as the workers'");
  verify.AddOption("--limit", options->faults_max, "Damaged samples to list").Within(0, 1'000'000);
  verify.AddOption("--threads", options->threads, "Threads; default: every core").Within(1, 1024);
  verify.SetAction([file, folder, options, &session] {
    session.Fail(PrintVerification(*file, *options, *folder, ImageMaker::Create, session));
  });
}

}  // namespace muster::cli
