#include "services/worker/program/program_port.h"

#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/transport/core/shared_slab.h"
#include "services/worker/program/fake_program.h"

namespace muster::program_port_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Kind = ProgramMessageKind;

// Notes what the port says.
class Host : public ProgramHost {
 public:
  void Attached(ProgramId program) override {
    absl::MutexLock lock(&mu_);
    attached_ = program;
    ++attachments_;
  }
  absl::Status Received(ProgramId, ProgramMessage message) override {
    absl::MutexLock lock(&mu_);
    messages_.push_back(std::move(message));
    return answer_;
  }
  void Lost(ProgramId program) override {
    absl::MutexLock lock(&mu_);
    EXPECT_EQ(program, attached_);
    attached_ = ProgramId::kNone;
  }

  ProgramId AwaitAttachments(int count) {
    absl::MutexLock lock(&mu_);
    auto came = [&] { return attachments_ >= count; };
    EXPECT_TRUE(AwaitFor(&mu_, absl::Condition(&came), absl::Seconds(30)));
    return attached_;
  }
  void AwaitLost() {
    absl::MutexLock lock(&mu_);
    auto lost = [&] { return attached_ == ProgramId::kNone; };
    EXPECT_TRUE(AwaitFor(&mu_, absl::Condition(&lost), absl::Seconds(30)));
  }
  std::vector<ProgramMessage> AwaitMessages(size_t count) {
    absl::MutexLock lock(&mu_);
    auto came = [&] { return messages_.size() >= count; };
    EXPECT_TRUE(AwaitFor(&mu_, absl::Condition(&came), absl::Seconds(30)));
    return messages_;
  }
  size_t messages() {
    absl::MutexLock lock(&mu_);
    return messages_.size();
  }
  void AnswerWith(absl::Status status) {
    absl::MutexLock lock(&mu_);
    answer_ = std::move(status);
  }

 private:
  absl::Mutex mu_;
  ProgramId attached_ = ProgramId::kNone;
  int attachments_ = 0;
  std::vector<ProgramMessage> messages_;
  absl::Status answer_;
};

struct Served {
  Served() : port(ProgramPort::Listen(NewSocketPath()).value()) {}
  ~Served() { port->Retire(); }
  void Serve(const std::string& name = "line") {
    ProgramPort::Job job{.id = absl::StrCat(name, "-1"),
                         .name = name,
                         .welcome = R"({"elements": 16, "parameters": []})"};
    for (const auto& slab : slabs) job.memory.emplace_back(dup(slab->fd()));
    port->Serve(std::move(job), &host);
  }
  std::vector<std::shared_ptr<SharedSlab>> slabs = {Slab(), Slab(), Slab()};
  Host host;
  std::unique_ptr<ProgramPort> port;

 private:
  static std::shared_ptr<SharedSlab> Slab() {
    return SharedSlab::Allocate(64, SealedMemory::Others::kWrite).value();
  }
};

json Hello(const std::string& job = "") { return {{"protocol", 1}, {"job", job}}; }

std::string Gradients(int64_t attempt, float weight, uint32_t count, double learning_rate,
                      uint32_t flags = 0) {
  std::string body(16 + 16 * size_t{count}, '\0');
  std::memcpy(body.data(), &attempt, 8);
  std::memcpy(body.data() + 8, &weight, 4);
  std::memcpy(body.data() + 12, &count, 4);
  for (uint32_t i = 0; i < count; ++i) {
    std::memcpy(body.data() + 16 + 16 * i, &i, 4);
    std::memcpy(body.data() + 20 + 16 * i, &flags, 4);
    std::memcpy(body.data() + 24 + 16 * i, &learning_rate, 8);
  }
  return body;
}

TEST(ProgramPortTest, AProgramWaitsForItsJobAndSharesItsMemory) {
  Served served;
  FakeProgram program(served.port->path());
  program.Send(Kind::kHello, Hello("line"));
  EXPECT_EQ(program.Await(Kind::kWaiting)["message"], "no job for this worker yet");
  served.Serve("other");
  EXPECT_THAT(program.Await(Kind::kWaiting)["message"].get<std::string>(),
              HasSubstr("serves other-1, not line"));
  served.port->Retire();
  EXPECT_EQ(program.Await(Kind::kWaiting)["message"], "no job for this worker yet");
  served.Serve("line");
  EXPECT_EQ(program.Await(Kind::kWelcome)["elements"], 16);

  FakeProgram follower(served.port->path());
  follower.Join("line-1", /*process=*/1);
  follower.memory(0)[3] = 7;
  EXPECT_EQ(reinterpret_cast<const float*>(served.slabs[0]->memory().data())[3], 7);

  FakeProgram second(served.port->path());
  second.Send(Kind::kHello, Hello());
  EXPECT_EQ(second.Await(Kind::kRefused)["reason"], "BUSY");
  program.Die();
  served.host.AwaitLost();
  FakeProgram third(served.port->path());
  third.Join();
  served.host.AwaitAttachments(2);
}

TEST(ProgramPortTest, HandsMessagesToTheHostAndAnswersNextWithEnd) {
  Served served;
  served.Serve();
  FakeProgram program(served.port->path());
  program.Join();
  program.Send(Kind::kData, {{"samples", 5}});
  program.Send(Kind::kNext, {{"finished", nullptr}, {"unknown", {1, 2}}});
  program.SendBytes(FrameProgramMessage(Kind::kGradients, Gradients(1, 0.5f, 2, 0.1, 1)));
  program.Send(Kind::kFailed, {{"message", std::string(20000, 'x') + "the end"}});
  const std::vector<ProgramMessage> messages = served.host.AwaitMessages(4);
  EXPECT_EQ(std::get<ProgramData>(messages[0]).samples, 5);
  EXPECT_FALSE(std::get<ProgramNext>(messages[1]).finished.has_value());
  const auto& gradients = std::get<ProgramGradients>(messages[2]);
  EXPECT_EQ(gradients.weight, 0.5f);
  ASSERT_EQ(gradients.entries.size(), 2);
  EXPECT_EQ(gradients.entries[1].parameter, 1);
  EXPECT_FALSE(gradients.entries[1].has_gradient);
  const std::string& why = std::get<ProgramFailure>(messages[3]).message;
  EXPECT_EQ(why.size(), kProgramErrorBytesMax);
  EXPECT_TRUE(why.ends_with("the end"));

  const ProgramId id = served.host.AwaitAttachments(1);
  served.port->Send(id, Kind::kBegin, R"({"step": 3})");
  EXPECT_EQ(program.Await(Kind::kBegin)["step"], 3);
  served.port->End(id, "suspended", "");  // the program is in its own code
  served.port->End(id, "failed", "too late");
  program.Send(Kind::kNext, {{"finished", nullptr}});
  EXPECT_EQ(program.Await(Kind::kEnd)["reason"], "suspended");
}

TEST(ProgramPortTest, AnswersAnEvaluationWithEnd) {
  Served served;
  served.Serve();
  FakeProgram program(served.port->path());
  program.Join();
  program.Send(Kind::kEvaluation, {{"step", 1}, {"samples", 2}, {"metrics", {{"loss", 0.5}}}});
  served.host.AwaitMessages(1);
  served.port->End(served.host.AwaitAttachments(1), "failed", "the other program failed");
  EXPECT_EQ(program.Await(Kind::kEnd)["reason"], "failed");
}

TEST(ProgramPortTest, NumbersThatAreNotFiniteTravelAsText) {
  const auto message =
      ParseProgramMessage(static_cast<uint8_t>(Kind::kNext),
                          R"({"finished": {"attempt": 1, "step": 0, "samples": 2, "loss": "nan",
                       "metrics": {"a": "inf", "b": "-inf", "c": 1}}})");
  ASSERT_TRUE(message.ok()) << message.status();
  const FinishedStep& finished = *std::get<ProgramNext>(*message).finished;
  EXPECT_TRUE(std::isnan(*finished.loss));
  EXPECT_EQ(finished.metrics.at("a"), std::numeric_limits<double>::infinity());
  EXPECT_EQ(finished.metrics.at("b"), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(JsonNumber(std::nan("")), "nan");
  EXPECT_EQ(JsonNumber(1.5), 1.5);
}

// Each message ends its connection, with the reason if the bytes allow it. The port serves on.
TEST(ProgramPortTest, BytesThatBreakTheProtocolEndOnlyTheirConnection) {
  Served served;
  served.Serve();
  const auto frame = [](int kind, const std::string& body) {
    return FrameProgramMessage(static_cast<Kind>(kind), body);
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::string too_many = R"({"finished": {"metrics": {)";
  for (int i = 0; i < 33; ++i) absl::StrAppend(&too_many, i > 0 ? "," : "", "\"m", i, "\": 1");
  absl::StrAppend(&too_many, "}}}");
  std::string wrong_length = Gradients(1, 1, 2, 0.1);
  wrong_length.pop_back();
  const std::vector<std::pair<std::string, std::string>> cases = {
      {std::string("\xff\xff\xff\x7f\x03\0\0\0", 8), "at most 1048576"},
      {std::string("\x02\0\0\0\x03\1\0\0{}", 10), "bytes 5 to 7"},
      {frame(7, "{}"), "not for a worker"},
      {frame(0, "{}"), "not for a worker"},
      {frame(65, "{}"), "not for a worker"},
      {frame(3, ""), "not JSON"},
      {frame(3, "[]"), "no JSON object"},
      {frame(3, "{\"finished\": NaN}"), "not JSON"},
      {frame(3, std::string(100000, '[')), "message of kind 3"},
      {frame(3, R"({"finished": 1})"), "no JSON object"},
      {frame(3, R"({"finished": {"loss": "many"}})"), "'loss' must be a number"},
      {frame(3, R"({"finished": {"step": -1}})"), "'step' must be an integer"},
      {frame(3, R"({"finished": {"step": 1e300}})"), "'step' must be an integer"},
      {frame(3, R"({"finished": {"data_seconds": -1}})"), "not negative"},
      {frame(3, too_many), "at most 32"},
      {frame(3, R"({"finished": null, "finished": null})"), "duplicate key"},
      {frame(2, R"({"samples": 99999999999999999999})"), "'samples' must be an integer"},
      {frame(5, R"({"step": 1, "metrics": {"": 1}})"), "names of 1 to 64"},
      {frame(6, R"({"message": 5})"), "'message' must be a text"},
      {frame(4, ""), "a body of 0 bytes"},
      {frame(4, wrong_length), "2 entries in a body of 47"},
      {frame(4, Gradients(1, nan, 1, 0.1)), "the weight nan"},
      {frame(4, Gradients(1, 0, 1, 0.1)), "the weight 0"},
      {frame(4, Gradients(1, -1, 1, 0.1)), "the weight -1"},
      {frame(4, Gradients(1, 1, 1, nan)), "the learning rate nan"},
      {frame(4, Gradients(1, 1, 1, -0.1)), "the learning rate -0.1"},
      {frame(4, Gradients(1, 1, 1, 0.1, 2)), "unknown flags 2"},
      {frame(1, R"({"protocol": 1})"), "a second HELLO"},
      {frame(3, "{}") + frame(3, "{}"), "another NEXT is not answered"},
  };
  int attachments = 0;
  for (const auto& [bytes, why] : cases) {
    FakeProgram program(served.port->path());
    program.Join();
    program.SendBytes(bytes);
    const json refused = program.Await(Kind::kRefused);
    EXPECT_EQ(refused["reason"], "BAD_MESSAGE");
    EXPECT_THAT(refused["message"].get<std::string>(), HasSubstr(why)) << bytes.substr(0, 60);
    EXPECT_EQ(program.Receive().kind, Kind());
    served.host.AwaitAttachments(++attachments);
    served.host.AwaitLost();
  }
  EXPECT_EQ(served.host.messages(), 1) << "the first of two NEXT";

  FakeProgram old(served.port->path());
  old.Send(Kind::kHello, {{"protocol", 2}});
  EXPECT_EQ(old.Await(Kind::kRefused)["reason"], "PROTOCOL");
  FakeProgram early(served.port->path());
  early.Send(Kind::kNext, {{"finished", nullptr}});
  EXPECT_EQ(early.Await(Kind::kRefused)["reason"], "BAD_MESSAGE");

  FakeProgram refused(served.port->path());
  refused.Join();
  served.host.AnswerWith(absl::InvalidArgumentError("the host disagrees"));
  refused.Send(Kind::kData, {{"samples", 1}});
  EXPECT_EQ(refused.Await(Kind::kRefused)["message"], "the host disagrees");
}

TEST(ProgramPortTest, SurvivesRandomBytesAndTruncatedFrames) {
  Served served;
  served.Serve();
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    FakeProgram program(served.port->path());
    if (i % 2 == 0) program.Send(Kind::kHello, Hello());
    std::string bytes = FrameProgramMessage(
        static_cast<Kind>(random() % 8), std::string(random() % 64, static_cast<char>(random())));
    for (char& byte : bytes) {
      if (random() % 4 == 0) byte = static_cast<char>(random());
    }
    bytes.resize(random() % (bytes.size() + 1));
    program.SendBytes(bytes);
    program.Die();
  }
  FakeProgram program(served.port->path());
  program.Join();
  // A frame that arrives byte by byte.
  const std::string data = FrameProgramMessage(Kind::kData, R"({"samples": 77})");
  const size_t before = served.host.messages();
  for (const char byte : data) program.SendBytes(absl::string_view(&byte, 1));
  const std::vector<ProgramMessage> messages = served.host.AwaitMessages(before + 1);
  EXPECT_EQ(std::get<ProgramData>(messages.back()).samples, 77);
}

TEST(ProgramPortTest, BoundsItsConnections) {
  Served served;
  std::vector<std::unique_ptr<FakeProgram>> programs;
  for (int i = 0; i < ProgramPort::kConnectionsMax; ++i) {
    programs.push_back(std::make_unique<FakeProgram>(served.port->path()));
    programs.back()->Send(Kind::kHello, Hello());
    programs.back()->Await(Kind::kWaiting);
  }
  FakeProgram one_more(served.port->path());
  EXPECT_EQ(one_more.Await(Kind::kRefused)["reason"], "TOO_MANY");
}

TEST(ProgramPortTest, ReplacesALeftOverSocketButNoLivingOne) {
  const std::string path = NewSocketPath();
  auto port = ProgramPort::Listen(path);
  ASSERT_TRUE(port.ok()) << port.status();
  EXPECT_TRUE(absl::IsAlreadyExists(ProgramPort::Listen(path).status()));
  const std::string kept = path + ".kept";
  ASSERT_EQ(rename(path.c_str(), kept.c_str()), 0);
  port->reset();
  ASSERT_EQ(rename(kept.c_str(), path.c_str()), 0);
  port = ProgramPort::Listen(path);
  EXPECT_TRUE(port.ok()) << port.status();
  EXPECT_TRUE(absl::IsInvalidArgument(ProgramPort::Listen(std::string(200, 'x')).status()));
  EXPECT_FALSE(ProgramPort::Listen("/dev/null/x.sock").ok());
}

}  // namespace
}  // namespace muster::program_port_test
