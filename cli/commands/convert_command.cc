// Implements muster data convert.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/commands/session.h"
#include "google/protobuf/struct.pb.h"
#include "lib/data/convert/convert.h"
#include "lib/status/status.h"
#include "lib/text/byte_size.h"

namespace muster::cli {
namespace {

struct ConvertCommand {
  std::string in, out;
  int64_t shard_bytes = int64_t{256} << 20;
  bool force = false;
};

// Returns "1.2 MiB in 0.5 s, 2.4 MiB/s".
std::string SizeAndRate(int64_t bytes, absl::Duration time) {
  const double seconds = absl::ToDoubleSeconds(time);
  const double rate = seconds > 0 ? bytes / seconds : 0;
  return absl::StrFormat("%s in %.1f s, %s/s", FormatBytes(bytes), seconds,
                         FormatBytes(static_cast<int64_t>(rate)));
}

google::protobuf::Struct MessageOf(const Converted& converted, absl::Duration time) {
  google::protobuf::Struct message;
  auto& fields = *message.mutable_fields();
  fields["kind"].set_string_value(converted.kind);
  fields["files"].set_number_value(static_cast<double>(converted.files));
  fields["files_left_out"].set_number_value(static_cast<double>(converted.files_left_out));
  fields["files_written"].set_number_value(static_cast<double>(converted.files_written));
  fields["bytes_read"].set_number_value(static_cast<double>(converted.bytes_read));
  fields["bytes_written"].set_number_value(static_cast<double>(converted.bytes_written));
  fields["seconds"].set_number_value(absl::ToDoubleSeconds(time));
  return message;
}

absl::Status RunConvert(const ConvertCommand& command, const Session& session) {
  const absl::Time start = absl::Now();
  absl::Time shown = start;
  bool has_line = false;
  ConvertOptions options;
  options.overwrite = command.force ? Overwrite::kReplace : Overwrite::kRefuse;
  options.shard_bytes = command.shard_bytes;
  if (session.is_for_people() && isatty(fileno(stderr))) {
    options.progress = [&](int64_t bytes) {
      const absl::Time now = absl::Now();
      if (now - shown < absl::Seconds(1)) return;
      shown = now;
      has_line = true;
      std::fprintf(stderr, "\r%s ", SizeAndRate(bytes, now - start).c_str());
    };
  }
  const absl::StatusOr<Converted> converted = Convert(command.in, command.out, options);
  if (has_line) std::fprintf(stderr, "\n");
  RETURN_IF_ERROR(converted.status());
  const absl::Duration time = absl::Now() - start;
  std::string text = absl::StrCat(command.out, ": ", converted->kind, " from ", converted->files,
                                  converted->files == 1 ? " file, " : " files, ",
                                  FormatBytes(converted->bytes_read), " to ",
                                  SizeAndRate(converted->bytes_written, time), "\n");
  if (converted->files_left_out > 0) {
    absl::StrAppend(&text, "left out: ", converted->files_left_out,
                    converted->files_left_out == 1 ? " file that is" : " files that are",
                    " not compressed\n");
  }
  session.Print(MessageOf(*converted, time), text, absl::StrCat(command.out, "\n"));
  return absl::OkStatus();
}

}  // namespace

void AddConvertCommand(Command program, Session& session) {
  std::optional<Command> data = program.FindCommand("data");
  if (!data) {
    data = program.AddCommand("data", "Prepare data for jobs",
                              "muster data convert train.csv.gz train.csv");
    data->RequireCommand();
  }
  auto command = std::make_shared<ConvertCommand>();
  Command convert = data->AddCommand("convert", "Convert data so that jobs can read them", "");
  convert.SetFooter(
      "  IN                    OUT\n"
      "  file .gz or .zst      the decompressed file\n"
      "  file .npz             an .npz file without compression\n"
      "  folder of .npy        one .npy file; each file is a sample\n"
      "  folder of images      a folder of tar shards; each folder is a class\n"
      "  another folder        a folder with its .gz, .zst and .npz files\n\n"
      "Example:\n"
      "  muster data convert train.csv.gz train.csv");
  convert.AddOption("IN", command->in, "File or folder").Required();
  convert.AddOption("OUT", command->out, "File or folder to write").Required();
  convert.AddOption("--shard-bytes", command->shard_bytes, "Of a tar shard; default: 256 MiB")
      .Positive();
  convert.AddFlag("--force", command->force, "Replace files and earlier shards");
  convert.SetAction([command, &session] { session.Fail(RunConvert(*command, session)); });
}

}  // namespace muster::cli
