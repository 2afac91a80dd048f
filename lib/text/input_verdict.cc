#include "lib/text/input_verdict.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace muster {
namespace {

double SecondsOfSample(const std::vector<InputStageCost>& costs) {
  double seconds = 0;
  for (const InputStageCost& cost : costs) seconds += cost.seconds;
  return seconds;
}

bool IsStorage(absl::string_view stage) { return stage == "open" || stage == "read"; }

absl::string_view RemedyFor(absl::string_view stage, bool has_images) {
  if (stage == "open") {
    return "Fewer and larger files help: muster data convert FOLDER OUT packs images into tar "
           "files";
  }
  if (stage == "read") {
    return "Faster storage helps, or data.shuffle: {block: {}}, which reads neighbours soon after "
           "each other";
  }
  // Only sources with images have a thread for each core.
  if (stage == "decode" && !has_images) {
    return "More workers help, because each one reads a share of the batch";
  }
  if (stage == "decode") {
    return "More cores for the worker help, or images that are stored smaller, or "
           "data.image.decode: fast";
  }
  if (stage == "resample") {
    return "More cores for the worker help, or images that are stored nearer to the model's size";
  }
  return "More cores for the worker help, or fewer transforms in data.image.train";
}

std::string Milliseconds(double seconds) {
  return seconds < 1e-3 ? absl::StrFormat("%.3f ms", 1e3 * seconds)
                        : absl::StrFormat("%.1f ms", 1e3 * seconds);
}

}  // namespace

v1::InputTiming Since(const v1::InputTiming& before, const v1::InputTiming& after) {
  v1::InputTiming since = after;
  since.set_samples(after.samples() - before.samples());
  since.set_open_seconds(after.open_seconds() - before.open_seconds());
  since.set_read_seconds(after.read_seconds() - before.read_seconds());
  since.set_decode_seconds(after.decode_seconds() - before.decode_seconds());
  since.set_resample_seconds(after.resample_seconds() - before.resample_seconds());
  since.set_augment_seconds(after.augment_seconds() - before.augment_seconds());
  since.set_room_seconds(after.room_seconds() - before.room_seconds());
  since.set_substituted(after.substituted() - before.substituted());
  since.set_read_bytes(after.read_bytes() - before.read_bytes());
  return since;
}

std::vector<InputStageCost> InputStageCosts(const v1::InputTiming& timing) {
  const auto samples = static_cast<double>(timing.samples());
  if (samples <= 0) return {};
  return {{"open", timing.open_seconds() / samples},
          {"read", timing.read_seconds() / samples},
          {"decode", timing.decode_seconds() / samples},
          {"resample", timing.resample_seconds() / samples},
          {"augment", timing.augment_seconds() / samples}};
}

double InputCapacity(const v1::InputTiming& timing) {
  const double seconds = SecondsOfSample(InputStageCosts(timing));
  return seconds > 0 ? timing.threads() / seconds : 0;
}

std::string InputVerdict(const v1::InputTiming& timing, double wanted) {
  const std::vector<InputStageCost> costs = InputStageCosts(timing);
  const double seconds = SecondsOfSample(costs);
  if (seconds <= 0) return "";
  const InputStageCost& most = *std::ranges::max_element(costs, {}, &InputStageCost::seconds);
  const int threads = timing.threads();
  std::string text = absl::StrCat(
      most.stage, " takes ", absl::StrFormat("%.0f %%", 100 * most.seconds / seconds), " of ",
      Milliseconds(seconds), " a sample on ", threads, threads == 1 ? " thread" : " threads");
  const double needed = std::ceil(wanted * seconds);
  if (needed <= threads) {
    absl::StrAppend(&text, threads == 1 ? "; it reads " : "; they read ",
                    absl::StrFormat("%.0f", InputCapacity(timing)),
                    " samples/s on average, but unevenly");
  } else if (!IsStorage(most.stage)) {
    absl::StrAppend(&text, absl::StrFormat("; %.0f threads would keep up", needed));
  }
  const bool has_images = timing.resample_seconds() > 0 || timing.augment_seconds() > 0;
  return absl::StrCat(text, ". ", RemedyFor(most.stage, has_images));
}

}  // namespace muster
