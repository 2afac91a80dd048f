// Sends arbitrary directives to two ps and a worker. The members must survive the directives, and
// report a failure if they cannot carry one out. They must drop all jobs when the coordinator is
// lost.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/message.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/fleet/channel.h"
#include "lib/fleet/fleet_client.h"
#include "lib/graph/zoo/zoo.h"
#include "lib/plan/chunk_placement.h"
#include "lib/plan/parameter_table.h"
#include "lib/shard/testing/fake_member_service.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/testing/inprocess_transport.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/ps/parameter_server.h"
#include "services/worker/worker.h"
#include "tests/fuzz/fuzz_target.h"

namespace muster {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr std::array<const char*, 2> kPs = {"ps-0", "ps-1"};
constexpr char kWorker[] = "worker-0";
constexpr int64_t kSteps = 3;  // of each generation
// The longest time that a member may take to accept a directive; its own threads carry it out.
constexpr absl::Duration kHandleMax = absl::Seconds(5);
constexpr absl::Duration kToldAgainAfter = absl::Milliseconds(20);
// The patience after a failed directive, when members do little.
constexpr absl::Duration kPatienceWithFailed = absl::Milliseconds(20);
constexpr absl::Duration kEndMax = absl::Seconds(20);

// The first byte of an input selects how the others are read.
constexpr char kOrders = 'o';   // a sequence of orders: see Append()
constexpr char kChoices = 'c';  // which orders, and how each field is changed
constexpr char kRandom = 'r';   // the number of random changes, and their seed

enum class To : char { kPs = 'p', kWorker = 'w', kAll = 'a' };

struct Order {
  To to = To::kAll;
  v1::Directive directive;
};

// ---------------------------------------------------------------- members

// Two ps and a worker on an in-process network, as a coordinator would run them.
class Members {
 public:
  // All waits for the effects of directives together last at most `patience`, because some
  // directives have no effect.
  explicit Members(absl::Duration patience) : patience_(patience) {
    for (size_t i = 0; i < kPs.size(); ++i) {
      auto ps = ParameterServer::Create({.member = kPs[i],
                                         .memory_bytes = 1 << 20,
                                         .transport = Transports(),
                                         .coordinator = service_.address(),
                                         .metrics = &ps_metrics_[i],
                                         .report_soon = [this] { NoteChange(); }});
      CHECK(ps.ok()) << ps.status();
      ps_[i] = *std::move(ps);
    }
    worker_ = std::make_unique<Worker>(
        Worker::Options{.member = kWorker,
                        .devices = {"cpu:0"},
                        .transport = Transports(),
                        .coordinator = CoordinatorTarget(service_.address()),
                        .shard_memory_bytes = 1 << 20,
                        .metrics = &worker_metrics_,
                        .report_soon = [this] { NoteChange(); }});
  }

  // Checks that the members end in time, whatever state they are in.
  ~Members() {
    const absl::Duration begin = SteadyNow();
    worker_->CoordinatorLost();
    for (const auto& ps : ps_) ps->CoordinatorLost();
    worker_.reset();
    for (auto& ps : ps_) ps.reset();
    CHECK_LT(SteadyNow() - begin, kEndMax) << "a member does not end";
  }

  // Addresses in the order of creation: each ps, then the worker of a job without ps.
  static std::string AddressOf(size_t number) { return absl::StrCat("inprocess:", number); }

  void Tell(const Order& order) {
    for (size_t i = 0; i < ps_.size() && order.to != To::kWorker; ++i) {
      Tell(*ps_[i], order.directive);
    }
    if (order.to != To::kPs) Tell(*worker_, order.directive);
  }
  // Whether a member has reported a failure.
  bool failed() const { return failed_; }
  // Whether the worker has reported that it has made all steps.
  bool done() const { return done_; }

 private:
  TransportFactory Transports() {
    return
        [this]() -> absl::StatusOr<std::unique_ptr<Transport>> { return network_.MakeTransport(); };
  }
  void NoteChange() {
    absl::MutexLock lock(&mu_);
    changed_ = true;
  }

  // Sends the directive again until the member carries it out, as the coordinator does.
  void Tell(FleetMember& member, const v1::Directive& directive) {
    while (true) {
      const absl::Duration begin = SteadyNow();
      member.Handle(directive);
      CHECK_LT(SteadyNow() - begin, kHandleMax) << "the thread of the stream was held up";
      if (IsCarriedOut(directive, member) || patience_ <= absl::ZeroDuration()) return;
      absl::MutexLock lock(&mu_);
      AwaitFor(&mu_, absl::Condition(&changed_), std::min(patience_, kToldAgainAfter));
      changed_ = false;
      patience_ -= SteadyNow() - begin;
    }
  }

  // Judges by the member's report, as the coordinator does. A job that is missing from the report
  // was dropped.
  bool IsCarriedOut(const v1::Directive& directive, FleetMember& member) {
    const std::vector<v1::JobReport> reports = member.Report();
    for (const v1::JobReport& report : reports) Note(report);
    const std::string& job =
        directive.has_prepare() ? directive.prepare().plan().job() : directive.job();
    const auto report = std::ranges::find(reports, job, &v1::JobReport::job);
    if (report == reports.end()) return true;
    const v1::MemberJobState state = report->state();
    const bool is_over = state == v1::MEMBER_DONE || state == v1::MEMBER_PAUSED ||
                         state == v1::MEMBER_FAILED || state == v1::MEMBER_HALTED;
    switch (directive.kind_case()) {
      case v1::Directive::kPrepare:
        return state != v1::MEMBER_PREPARING;
      case v1::Directive::kStart:
        return is_over || (state == v1::MEMBER_RUNNING && &member != worker_.get());
      case v1::Directive::kPause:
        return is_over || &member != worker_.get();
      case v1::Directive::kHalt:
        return state == v1::MEMBER_HALTED;
      case v1::Directive::kRelease:
        return report->generation() > directive.generation();
      default:
        return true;
    }
  }

  void Note(const v1::JobReport& report) {
    CHECK(v1::MemberJobState_IsValid(report.state())) << report.state();
    done_ |= report.state() == v1::MEMBER_DONE;
    if (report.state() != v1::MEMBER_FAILED) return;
    failed_ = true;
    patience_ = std::min(patience_, kPatienceWithFailed);
    CHECK_NE(report.error().code(), 0);
    CHECK(!report.error().reason().empty()) << report.error().message();
    CHECK(!report.error().message().empty()) << report.error().reason();
  }

  InProcessNetwork network_;
  FakeMemberService service_;
  std::array<Metrics, kPs.size()> ps_metrics_;
  Metrics worker_metrics_;
  absl::Mutex mu_;
  bool changed_ ABSL_GUARDED_BY(mu_) = false;
  absl::Duration patience_;
  bool failed_ = false, done_ = false;
  std::array<std::unique_ptr<ParameterServer>, kPs.size()> ps_;
  std::unique_ptr<Worker> worker_;
};

// Returns true if the worker made all steps and no member failed.
bool Play(const std::vector<Order>& orders, absl::Duration patience) {
  Members members(patience);
  for (const Order& order : orders) members.Tell(order);
  return members.done() && !members.failed();
}

// ---------------------------------------------------------------- orders

void Append(const Order& order, std::string& bytes) {
  bytes.push_back(static_cast<char>(order.to));
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.WriteVarint32(static_cast<uint32_t>(order.directive.ByteSizeLong()));
  order.directive.SerializeWithCachedSizes(&coded);
}

// Parses orders up to the first bytes that are not an order.
std::vector<Order> ParseOrders(absl::string_view bytes) {
  std::vector<Order> orders;
  google::protobuf::io::CodedInputStream coded(reinterpret_cast<const uint8_t*>(bytes.data()),
                                               static_cast<int>(bytes.size()));
  std::string to, directive;
  uint32_t size = 0;
  while (coded.ReadString(&to, 1) && coded.ReadVarint32(&size) &&
         coded.ReadString(&directive, static_cast<int>(std::min<uint32_t>(size, 1 << 20)))) {
    Order& order = orders.emplace_back();
    order.to = to == "p" ? To::kPs : to == "w" ? To::kWorker : To::kAll;
    if (!order.directive.ParseFromString(directive)) {
      orders.pop_back();
      break;
    }
  }
  return orders;
}

v1::JobSpec LineSpec() {
  v1::JobSpec spec;
  spec.set_name("line");
  spec.mutable_model()->mutable_zoo()->set_name("linear");
  spec.mutable_data()->mutable_linear()->set_slope(3);
  spec.mutable_data()->mutable_linear()->set_samples(64);
  spec.mutable_data()->set_batch_size(8);
  spec.mutable_training()->set_steps(2 * kSteps);
  spec.mutable_training()->mutable_optimizer()->mutable_sgd()->set_learning_rate(0.1);
  return spec;
}

v1::JobSpec GptSpec() {
  v1::JobSpec spec = LineSpec();
  v1::ZooModel& model = *spec.mutable_model()->mutable_zoo();
  model.set_name("gpt");
  auto& arguments = *model.mutable_args()->mutable_fields();
  for (const auto& [name, value] :
       {std::pair("layers", 1), {"heads", 2}, {"channels", 8}, {"context", 8}}) {
    arguments[name].set_number_value(value);
  }
  spec.mutable_data()->mutable_synthetic()->set_samples(64);
  spec.mutable_data()->mutable_synthetic()->set_holdout(0.25);
  v1::TrainingSpec& training = *spec.mutable_training();
  training.mutable_optimizer()->mutable_adamw()->set_learning_rate(0.01);
  training.mutable_schedule()->set_warmup_steps(1);
  training.mutable_schedule()->mutable_cosine();
  training.set_precision(v1::FP16);
  training.mutable_loss_scale()->set_initial(1024);
  training.mutable_loss_scale()->set_growth_steps(2);
  training.mutable_clip()->set_global_norm(1);
  training.set_evaluate_every_steps(2);
  v1::ParameterGroup& group = *training.add_parameter_groups();
  group.add_match("*.bias");
  group.set_weight_decay(false);
  spec.mutable_checkpoint()->set_every_steps(kSteps);
  return spec;
}

v1::JobSpec LocalSpec() {
  v1::JobSpec spec = LineSpec();
  spec.mutable_training()->mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
  spec.mutable_sync()->set_mode(v1::LOCAL_SGD);
  spec.mutable_sync()->set_every(2);
  return spec;
}

v1::JobSpec PackedSpec() {
  v1::JobSpec spec = LineSpec();
  spec.mutable_sync()->set_mode(v1::SSP);
  spec.mutable_sync()->set_staleness(1);
  spec.mutable_sync()->mutable_compression()->set_kind(v1::COMPRESSION_INT8);
  return spec;
}

v1::JobSpec BackedSpec() {
  v1::JobSpec spec = LineSpec();
  spec.mutable_resources()->set_ps(2);
  spec.mutable_resources()->set_ps_replication(2);
  return spec;
}

v1::JobSpec RingSpec() {
  v1::JobSpec spec = LineSpec();
  spec.mutable_sync()->set_mode(v1::ALLREDUCE);
  return spec;
}

v1::JobPlan PlanOf(const v1::JobSpec& spec) {
  v1::JobPlan plan;
  plan.set_job(absl::StrCat(spec.name(), "-1"));
  plan.set_job_number(1);
  plan.set_generation(1);
  plan.set_session_token("0123456789abcdef");
  *plan.mutable_spec() = spec;
  const auto graph = BuildModel(spec.model());
  CHECK(graph.ok()) << graph.status();
  *plan.mutable_graph() = *graph;
  v1::PlanWorker& worker = *plan.add_workers();
  worker.set_member(kWorker);
  worker.set_samples(spec.data().batch_size());
  const bool ring = spec.sync().mode() == v1::ALLREDUCE;
  const int shards = ring ? 1 : kPs.size();
  for (int i = 0; i < shards; ++i) {
    v1::PlanShard& shard = *plan.add_shards();
    shard.set_member(ring ? kWorker : kPs[i]);
    if (!ring) shard.set_address(Members::AddressOf(i));
    if (spec.resources().ps_replication() < 2) continue;
    const int other = 1 - i;
    shard.mutable_backup()->set_member(kPs[other]);
    shard.mutable_backup()->set_address(Members::AddressOf(other));
  }
  std::vector<v1::PlanChunk> chunks = CutIntoChunks(*graph, /*chunk_bytes=*/1 << 10);
  PlaceChunks(absl::MakeSpan(chunks), shards);
  chunks = WithAveragedSlots(spec, std::move(chunks));
  plan.mutable_chunks()->Assign(chunks.begin(), chunks.end());
  return plan;
}

// Returns the orders of one generation, from Prepare to its last step, each with its receivers.
std::vector<Order> OrdersFor(const v1::JobPlan& plan) {
  std::vector<Order> orders;
  const auto add = [&](To to) -> v1::Directive& {
    Order& order = orders.emplace_back(Order{.to = to, .directive = {}});
    order.directive.set_term(1);
    order.directive.set_job(plan.job());
    order.directive.set_generation(plan.generation());
    return order.directive;
  };
  const bool ring = plan.spec().sync().mode() == v1::ALLREDUCE;
  const To all = ring ? To::kWorker : To::kAll;
  *add(all).mutable_prepare()->mutable_plan() = plan;
  v1::Snapshot& snapshot = *add(ring ? To::kWorker : To::kPs).mutable_snapshot();
  snapshot.set_snapshot(1);
  snapshot.set_step(plan.first_step() + 1);
  v1::Start& start = *add(all).mutable_start();
  start.set_total_steps(plan.first_step() + kSteps);
  if (ring) start.add_addresses(Members::AddressOf(kPs.size()));
  add(To::kWorker).mutable_acknowledge()->set_steps_before(2);
  add(To::kWorker).mutable_pause();
  add(all).mutable_halt();
  return orders;
}

// Returns the orders of a generation and, with ps, of the next one, which continues it in place.
// The next one fills replicas from the start, because their progress is unknown.
std::vector<Order> OrdersOf(const v1::JobSpec& spec) {
  v1::JobPlan plan = PlanOf(spec);
  std::vector<Order> orders = OrdersFor(plan);
  if (spec.sync().mode() != v1::ALLREDUCE) {
    plan.set_carries(plan.generation());
    plan.set_generation(plan.generation() + 1);
    plan.set_first_step(kSteps);
    const std::vector<Order> next = OrdersFor(plan);
    orders.insert(orders.end(), next.begin(), next.end());
  }
  Order& release = orders.emplace_back();
  release.directive.set_job(plan.job());
  release.directive.set_generation(plan.generation());
  release.directive.mutable_release();
  return orders;
}

const std::vector<std::vector<Order>>& Samples() {
  static const auto* const samples = [] {
    auto* all = new std::vector<std::vector<Order>>;
    for (const v1::JobSpec& spec :
         {LineSpec(), GptSpec(), LocalSpec(), PackedSpec(), BackedSpec(), RingSpec()}) {
      all->push_back(OrdersOf(spec));
    }
    return all;
  }();
  return *samples;
}

// Returns the `patience` for one input: the time that all samples together take on this machine and
// build. An input with valid directives needs a fraction of it.
absl::Duration Patience() {
  static const absl::Duration patience = [] {
    const absl::Duration begin = SteadyNow();
    for (const std::vector<Order>& orders : Samples()) CHECK(Play(orders, kEndMax));
    return std::max(SteadyNow() - begin, absl::Milliseconds(300));
  }();
  return patience;
}

// ---------------------------------------------------------------- changes

// Choices drawn from the bytes of an input; zero after the last byte.
class Choices {
 public:
  explicit Choices(absl::string_view bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }
  uint64_t Take(size_t width) {
    uint64_t value = 0;
    for (; width > 0 && !bytes_.empty(); --width) {
      value = value << 8 | static_cast<uint8_t>(bytes_.front());
      bytes_.remove_prefix(1);
    }
    return value;
  }
  size_t Below(size_t bound) { return Take(bound > 256 ? 2 : 1) % bound; }

 private:
  absl::string_view bytes_;
};

constexpr std::array<int64_t, 15> kNumbers = {0,
                                              1,
                                              -1,
                                              2,
                                              3,
                                              7,
                                              8,
                                              64,
                                              1000,
                                              65536,
                                              1 << 20,
                                              std::numeric_limits<int32_t>::max(),
                                              std::numeric_limits<int32_t>::min(),
                                              std::numeric_limits<int64_t>::max(),
                                              std::numeric_limits<int64_t>::min()};
constexpr std::array<double, 10> kReals = {0,
                                           1,
                                           -1,
                                           0.5,
                                           1e-300,
                                           1e300,
                                           -0.0,
                                           2,
                                           std::numeric_limits<double>::quiet_NaN(),
                                           std::numeric_limits<double>::infinity()};
constexpr std::array<const char*, 10> kTexts = {
    "", kPs[0], kPs[1], kWorker, "line-1", "inprocess:1", "mean", "/x", "jobs/line-1/checkpoints/2",
    "*"};

void Change(Message& message, Choices& choices);

// Sets the field, or one element of it, or adds or removes one.
void ChangeField(Message& message, const FieldDescriptor& field, Choices& choices) {
  const Reflection& reflection = *message.GetReflection();
  const bool many = field.is_repeated();
  if (many) {
    const int size = reflection.FieldSize(message, &field);
    const size_t what = choices.Below(8);
    if (what == 0 && size > 0) return reflection.RemoveLast(&message, &field);
    if (what == 1 && size > 1) {
      return reflection.SwapElements(&message, &field, static_cast<int>(choices.Below(size)),
                                     static_cast<int>(choices.Below(size)));
    }
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (what == 2 || size == 0) {
        Message& added = *reflection.AddMessage(&message, &field);
        if (size == 0) return Change(added, choices);
        const int like = static_cast<int>(choices.Below(size));
        return added.CopyFrom(reflection.GetRepeatedMessage(message, &field, like));
      }
      const int index = static_cast<int>(choices.Below(size));
      return Change(*reflection.MutableRepeatedMessage(&message, &field, index), choices);
    }
    // A repeated scalar field gets another last element, either added or in place of the old one.
    if (what > 2 && size > 0) reflection.RemoveLast(&message, &field);
  }
  const auto put = [&](auto set, auto add, auto value) {
    many ? (reflection.*add)(&message, &field, value) : (reflection.*set)(&message, &field, value);
  };
  const size_t which = choices.Below(kNumbers.size() + 3);
  const int64_t number =
      which < kNumbers.size() ? kNumbers[which] : static_cast<int64_t>(choices.Take(2));
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return put(&Reflection::SetInt32, &Reflection::AddInt32, static_cast<int32_t>(number));
    case FieldDescriptor::CPPTYPE_INT64:
      return put(&Reflection::SetInt64, &Reflection::AddInt64, number);
    case FieldDescriptor::CPPTYPE_UINT32:
      return put(&Reflection::SetUInt32, &Reflection::AddUInt32, static_cast<uint32_t>(number));
    case FieldDescriptor::CPPTYPE_UINT64:
      return put(&Reflection::SetUInt64, &Reflection::AddUInt64, static_cast<uint64_t>(number));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return put(&Reflection::SetDouble, &Reflection::AddDouble, kReals[which % kReals.size()]);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return put(&Reflection::SetFloat, &Reflection::AddFloat,
                 static_cast<float>(kReals[which % kReals.size()]));
    case FieldDescriptor::CPPTYPE_BOOL:
      return put(&Reflection::SetBool, &Reflection::AddBool, which % 2 == 0);
    case FieldDescriptor::CPPTYPE_ENUM:
      return put(&Reflection::SetEnumValue, &Reflection::AddEnumValue,
                 static_cast<int>(which % 12) - 1);
    case FieldDescriptor::CPPTYPE_STRING:
      return put(&Reflection::SetString, &Reflection::AddString,
                 std::string(kTexts[which % kTexts.size()]));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return Change(*reflection.MutableMessage(&message, &field), choices);
  }
}

// Changes one field. Usually it picks a field that is set, possibly a nested one; one time in four
// it picks from all fields.
void Change(Message& message, Choices& choices) {
  std::vector<const FieldDescriptor*> fields;
  if (choices.Below(4) != 0) message.GetReflection()->ListFields(message, &fields);
  const auto& type = *message.GetDescriptor();
  for (int i = 0; fields.empty() && i < type.field_count(); ++i) fields.push_back(type.field(i));
  if (fields.empty() || choices.empty()) return;
  const FieldDescriptor& field = *fields[choices.Below(fields.size())];
  if (choices.Below(16) == 0) return message.GetReflection()->ClearField(&message, &field);
  ChangeField(message, field, choices);
}

constexpr int kChangesMax = 6;
constexpr size_t kRandomBytes = 128;  // more than kChangesMax changes use
// Swaps the first order with itself.
constexpr absl::string_view kNoChange("\0\1\0", 3);

std::vector<Order> ChangedOrders(int changes, Choices& choices) {
  std::vector<Order> orders = Samples()[choices.Below(Samples().size())];
  for (; changes > 0 && !choices.empty(); --changes) {
    // The plan of the first order contains nearly every field.
    const size_t at = choices.Below(2) == 0 ? 0 : choices.Below(orders.size());
    switch (choices.Below(8)) {
      case 0:
        orders.insert(orders.begin() + choices.Below(orders.size()), Order(orders[at]));
        break;
      case 1:
        std::swap(orders[at], orders[choices.Below(orders.size())]);
        break;
      case 2:
        orders[at].to = To::kAll;
        break;
      default:
        Change(orders[at].directive, choices);
    }
  }
  return orders;
}

// Returns the same bytes for the same seed. Mutating one byte of a kChoices input changes one
// choice. Here it changes all choices, which finds more when no coverage guides the fuzzer.
std::string RandomBytes(absl::string_view seed) {
  std::seed_seq sequence(seed.begin(), seed.end());
  std::mt19937 random(sequence);
  std::string bytes(kRandomBytes, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

}  // namespace

bool FuzzOne(absl::string_view bytes) {
  static const bool quiet = [] {
    FLAGS_minloglevel = google::GLOG_FATAL;  // failures are expected
    return true;
  }();
  if (!quiet || bytes.empty()) return false;
  const absl::string_view rest = bytes.substr(1);
  switch (bytes[0]) {
    case kOrders:
      return Play(ParseOrders(rest), Patience());
    case kChoices: {
      Choices choices(rest);
      return Play(ChangedOrders(kChangesMax, choices), Patience());
    }
    case kRandom: {
      const std::string random = RandomBytes(rest);
      Choices choices(random);
      const int changes = rest.empty() ? 0 : static_cast<uint8_t>(rest[0]) % (kChangesMax + 1);
      return Play(ChangedOrders(changes, choices), Patience());
    }
    default:
      return false;
  }
}

std::vector<std::string> FuzzSeeds() {
  std::vector<std::string> seeds;
  for (size_t i = 0; i < Samples().size(); ++i) {
    std::string& orders = seeds.emplace_back(1, kOrders);
    for (const Order& order : Samples()[i]) Append(order, orders);
    std::string& choices = seeds.emplace_back(std::string{kChoices, static_cast<char>(i)});
    for (int changes = 0; changes < kChangesMax; ++changes) absl::StrAppend(&choices, kNoChange);
    seeds.push_back(std::string{kRandom, '\0', static_cast<char>(i)});
  }
  return seeds;
}

int FuzzTestInputs() { return 400; }

}  // namespace muster
