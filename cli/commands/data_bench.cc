#include "cli/commands/data_bench.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/data/paced_model.h"
#include "cli/local/job_check.h"
#include "google/protobuf/struct.pb.h"
#include "lib/concurrency/cpu_quota.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/data/image/image_maker.h"
#include "lib/data/order/sample_order.h"
#include "lib/data/pipeline/input_budget.h"
#include "lib/data/pipeline/input_pipeline.h"
#include "lib/data/pipeline/row_layout.h"
#include "lib/data/source/open_dataset.h"
#include "lib/engine/backends/backends.h"
#include "lib/graph/model/model.h"
#include "lib/job/job_file.h"
#include "lib/job/job_validation.h"
#include "lib/status/status.h"
#include "lib/text/byte_size.h"
#include "lib/text/input_verdict.h"

namespace muster::cli {
namespace {

constexpr double kDefaultPaceShare = 0.8;  // of the measured capacity
// The part of a pass before it counts, in relation to the part that counts. At first no batch is
// read ahead, so even a slow model waits.
constexpr double kWarmupShare = 0.25;
// Below this share of a step, waiting for samples is not worth a remedy.
constexpr double kWaitIsLow = 0.02;

struct DataBenchOptions {
  std::string job_file;
  std::vector<std::string> set;
  std::string index_folder;
  std::string pace;  // samples per second; "": see kDefaultPaceShare
  std::string seconds = "5";
  int threads = 0;  // 0: all usable cores
  int workers = 1;
};

// A number above zero, or 0 for another text.
double PositiveNumber(const std::string& text) {
  double number = 0;
  return absl::SimpleAtod(text, &number) && std::isfinite(number) && number > 0 ? number : 0;
}

std::string PositiveFault(const std::string& text) {
  return PositiveNumber(text) > 0 ? "" : absl::StrCat("'", text, "' is no number above 0");
}

struct Pass {
  double samples_per_second = 0;
  double wait_share = 0;  // of the time
  v1::InputTiming timing;
};

struct DataBenchResult {
  int64_t samples = 0, evaluation_samples = 0, batch_bytes = 0;
  absl::Duration open;
  Pass capacity, paced;
  double pace = 0;
  int64_t substituted = 0;  // damaged samples, in all passes
  std::string verdict;
};

class DataBench {
 public:
  static absl::StatusOr<DataBench> Open(const DataBenchOptions& options) {
    DataBench bench(options);
    ASSIGN_OR_RETURN(const std::string text, ReadJobFile(options.job_file));
    ASSIGN_OR_RETURN(const JobOverrides overrides, ParseOverrides(options.set));
    ASSIGN_OR_RETURN(CheckedJob job, CheckJobFile(text, options.job_file, overrides));
    bench.spec_ = std::move(job.spec);
    FillDefaults(bench.spec_);
    ASSIGN_OR_RETURN(Model model, LoadModel(bench.spec_.model()));
    bench.graph_ = std::make_unique<v1::Graph>(std::move(model.graph));
    ASSIGN_OR_RETURN(bench.device_, CreateDevice("cpu", /*threads=*/1));
    const absl::Duration begin = SteadyNow();
    ASSIGN_OR_RETURN(bench.dataset_,
                     OpenDataset(bench.spec_.data(), *bench.graph_,
                                 {.block_bytes_max = BlockBytesMax(bench.spec_.data()),
                                  .index_folder = options.index_folder,
                                  .make_images = ImageMaker::Create}));
    bench.open_ = SteadyNow() - begin;
    ASSIGN_OR_RETURN(
        SampleOrder order,
        SampleOrder::Create(bench.spec_.data(),
                            FactsOf(*bench.dataset_, bench.spec_.data(), *bench.graph_)));
    bench.order_.emplace(std::move(order));
    return bench;
  }

  // Takes batches of a new pipeline for a warm-up, and then for some seconds. A model of `pace`
  // samples per second computes in between; it takes no time if `pace` is 0.
  absl::StatusOr<Pass> Run(double pace) const {
    ASSIGN_OR_RETURN(const auto pipeline, MakePipeline());
    const absl::Duration seconds = absl::Seconds(PositiveNumber(options_.seconds));
    const absl::Duration step =
        pace > 0 ? absl::Seconds(static_cast<double>(share()) / pace) : absl::ZeroDuration();
    PacedModel warmup(step, SteadyNow());
    RETURN_IF_ERROR(Train(*pipeline, kWarmupShare * seconds, warmup));
    const v1::InputTiming before = pipeline->timing();
    PacedModel model(step, warmup.ready());
    RETURN_IF_ERROR(Train(*pipeline, seconds, model));
    return Pass{.samples_per_second = static_cast<double>(model.batches() * share()) /
                                      absl::ToDoubleSeconds(model.elapsed()),
                .wait_share = model.wait_share(),
                .timing = Since(before, pipeline->timing())};
  }

  const Dataset& dataset() const { return *dataset_; }
  absl::Duration open() const { return open_; }
  int64_t batch_bytes() const { return BytesOfRows(share(), RowBytes(*dataset_, *graph_)); }

 private:
  explicit DataBench(const DataBenchOptions& options) : options_(options) {}

  // The samples of each batch that the first worker reads.
  int64_t share() const {
    return std::max<int64_t>(1, spec_.data().batch_size() / options_.workers);
  }

  // Reads as far ahead, and with the priority, as a job on CPUs does.
  absl::StatusOr<std::unique_ptr<InputPipeline>> MakePipeline() const {
    ASSIGN_OR_RETURN(const int batches,
                     BatchesWithin(InputMemoryOf(spec_.data()), {.batch_bytes = batch_bytes()},
                                   BatchesAhead(*dataset_, share())));
    return InputPipeline::Create({.dataset = dataset_.get(),
                                  .graph = graph_.get(),
                                  .device = device_.get(),
                                  .order = *order_,
                                  .samples = share(),
                                  .batches = batches,
                                  .threads = options_.threads > 0 ? options_.threads : UsableCpus(),
                                  .nice = NiceBesideCpu(*dataset_)});
  }

  // Gives `model` batches until it has computed for `length` or more, and at least one.
  static absl::Status Train(InputPipeline& pipeline, absl::Duration length, PacedModel& model) {
    do {
      absl::SleepFor(model.ready() - SteadyNow());
      RETURN_IF_ERROR(pipeline.Next().status());
      model.Take(pipeline.read_at());
    } while (model.elapsed() < length);
    return absl::OkStatus();
  }

  DataBenchOptions options_;
  v1::JobSpec spec_;
  std::unique_ptr<v1::Graph> graph_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<const Dataset> dataset_;
  std::optional<SampleOrder> order_;
  absl::Duration open_;
};

std::string VerdictOf(const DataBenchResult& result) {
  const Pass& paced = result.paced;
  const std::string rates =
      absl::StrFormat("%.0f of %.0f samples/s", paced.samples_per_second, result.pace);
  if (paced.wait_share < kWaitIsLow) {
    return absl::StrFormat("not input-bound: %s, the model waits %.1f %% of a step", rates,
                           100 * paced.wait_share);
  }
  const std::string why = InputVerdict(paced.timing, result.pace);
  return absl::StrCat("input-bound: ", rates, why.empty() ? "" : "; ", why);
}

absl::StatusOr<DataBenchResult> Run(const DataBenchOptions& options) {
  ASSIGN_OR_RETURN(const DataBench bench, DataBench::Open(options));
  DataBenchResult result{.samples = bench.dataset().samples(),
                         .evaluation_samples = bench.dataset().evaluation_samples(),
                         .batch_bytes = bench.batch_bytes(),
                         .open = bench.open()};
  ASSIGN_OR_RETURN(result.capacity, bench.Run(/*pace=*/0));
  result.pace = options.pace.empty() ? kDefaultPaceShare * result.capacity.samples_per_second
                                     : PositiveNumber(options.pace);
  ASSIGN_OR_RETURN(result.paced, bench.Run(result.pace));
  result.substituted = bench.dataset().substituted();
  result.verdict = VerdictOf(result);
  return result;
}

std::string Text(const DataBenchResult& r) {
  std::string text = absl::StrFormat(
      "open         %.2f s: %d samples to train, %d held out\n"
      "capacity     %.1f samples/s on %d threads, %s/s from files, %s a batch of rows\n",
      absl::ToDoubleSeconds(r.open), r.samples, r.evaluation_samples, r.capacity.samples_per_second,
      r.capacity.timing.threads(),
      FormatBytes(static_cast<int64_t>(
          static_cast<double>(r.capacity.timing.read_bytes()) /
          std::max<double>(1, static_cast<double>(r.capacity.timing.samples())) *
          r.capacity.samples_per_second)),
      FormatBytes(r.batch_bytes));
  for (const InputStageCost& cost : InputStageCosts(r.capacity.timing)) {
    absl::StrAppend(&text,
                    absl::StrFormat("  %-10s %.3f ms a sample\n", cost.stage, 1e3 * cost.seconds));
  }
  absl::StrAppend(&text,
                  absl::StrFormat("paced        a model of %.1f samples/s trains %.1f and "
                                  "waits %.1f %% of its time\n",
                                  r.pace, r.paced.samples_per_second, 100 * r.paced.wait_share));
  if (r.substituted > 0) {
    absl::StrAppend(&text, "substituted  ", r.substituted, " damaged samples\n");
  }
  return absl::StrCat(text, r.verdict, "\n");
}

google::protobuf::Struct Message(const DataBenchResult& r) {
  google::protobuf::Struct message;
  auto& fields = *message.mutable_fields();
  const auto number = [&](const char* name, double value) { fields[name].set_number_value(value); };
  number("samples", static_cast<double>(r.samples));
  number("evaluation_samples", static_cast<double>(r.evaluation_samples));
  number("batch_bytes", static_cast<double>(r.batch_bytes));
  number("open_seconds", absl::ToDoubleSeconds(r.open));
  number("capacity_per_second", r.capacity.samples_per_second);
  number("threads", r.capacity.timing.threads());
  auto& stages = *fields["stage_seconds"].mutable_struct_value()->mutable_fields();
  for (const InputStageCost& cost : InputStageCosts(r.capacity.timing)) {
    stages[std::string(cost.stage)].set_number_value(cost.seconds);
  }
  number("pace", r.pace);
  number("paced_per_second", r.paced.samples_per_second);
  number("wait_share", r.paced.wait_share);
  number("substituted", static_cast<double>(r.substituted));
  fields["verdict"].set_string_value(r.verdict);
  return message;
}

absl::Status Print(const DataBenchOptions& options, const Session& session) {
  ASSIGN_OR_RETURN(const DataBenchResult result, Run(options));
  session.Print(Message(result), Text(result),
                absl::StrFormat("%.1f\n", result.capacity.samples_per_second));
  return absl::OkStatus();
}

}  // namespace

void AddDataBench(Command bench, Session& session) {
  auto options = std::make_shared<DataBenchOptions>();
  Command data = bench.AddCommand("data", "Time the reading of a job's samples",
                                  "muster bench data job.yaml --pace 480");
  data.AddOption("JOB_FILE", options->job_file, "Job file whose data to read").Required();
  data.AddOption("--set", options->set, "FIELD=VALUE for the job file").OneValueEach();
  data.AddOption("--pace", options->pace, "Samples/s of the model; default: 80 % of capacity")
      .Check(PositiveFault);
  data.AddOption("--seconds", options->seconds, "Length of each pass; default 5")
      .Check(PositiveFault);
  data.AddOption("--threads", options->threads, "Threads that read; default: every core")
      .Within(0, 1024);
  data.AddOption("--workers", options->workers, "Read the share of one of this many workers")
      .Within(1, 4096);
  data.AddOption("--index-folder", options->index_folder, "Folder for the index of the data");
  data.SetAction([options, &session] { session.Fail(Print(*options, session)); });
}

}  // namespace muster::cli
