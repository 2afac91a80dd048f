#include "lib/listener/call_credit.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/listener/http2_frame.h"

namespace muster::call_credit_test {
namespace {

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr CallCredit::Limits kLimits = {
    .first = 2, .most = 3, .per_second = 1, .message_bytes_max = 10};
constexpr CallCredit::Terms kTerms = {.open_max = 100};
constexpr absl::Duration kStart = absl::Seconds(1000);

std::string Frame(int type, int flags, uint32_t stream, const std::string& payload = "") {
  std::string frame = {0, 0, static_cast<char>(payload.size()), static_cast<char>(type),
                       static_cast<char>(flags)};
  for (int shift = 24; shift >= 0; shift -= 8) frame.push_back(static_cast<char>(stream >> shift));
  return frame + payload;
}
std::string Begin(uint32_t stream) { return Frame(1, 4, stream, "headers"); }
std::string Reset(uint32_t stream) { return Frame(3, 0, stream, "code"); }
std::string Trailers(uint32_t stream) { return Frame(1, 5, stream, "status"); }

// A connection that has sent its preface.
class CallCreditTest : public ::testing::Test {
 protected:
  CallCreditTest() { EXPECT_EQ(Up(kPreface), 24); }

  size_t Up(const std::string& bytes, const CallCredit::Terms& terms = kTerms,
            absl::Duration now = kStart) {
    const auto passed = credit_.PassToServer(bytes, terms, now);
    EXPECT_TRUE(passed.ok()) << passed.status();
    return passed.value_or(0);
  }
  size_t Down(const std::string& bytes) { return credit_.PassToClient(bytes, returns_); }

  CallCredit credit_{kLimits, kStart};
  double returns_ = 100;
};

TEST_F(CallCreditTest, ACallWithoutCreditWaitsForTime) {
  const std::string calls = Begin(1) + Begin(3) + Begin(5);
  EXPECT_EQ(Up(calls), Begin(1).size() * 2);
  EXPECT_TRUE(credit_.waiting());
  EXPECT_EQ(credit_.open(), 2);

  EXPECT_EQ(Up(Begin(5), kTerms, kStart + absl::Milliseconds(900)), 0);
  EXPECT_EQ(Up(Begin(5), kTerms, kStart + absl::Milliseconds(1100)), Begin(5).size());
  EXPECT_FALSE(credit_.waiting());
}

TEST_F(CallCreditTest, CallsAbandonedByTheClientGiveNoCreditBack) {
  const std::string calls = Begin(1) + Reset(1) + Begin(3) + Reset(3);
  EXPECT_EQ(Up(calls + Begin(5)), calls.size());
  EXPECT_EQ(credit_.open(), 0);
  EXPECT_TRUE(credit_.waiting());
}

TEST_F(CallCreditTest, CallsEndedByTheServerGiveTheirCreditBackAtOnce) {
  for (uint32_t stream = 1; stream < 99; stream += 2) {
    EXPECT_EQ(Up(Begin(stream)), Begin(stream).size());
    EXPECT_EQ(Down(Trailers(stream)), Trailers(stream).size());
  }
  EXPECT_EQ(credit_.open(), 0);
}

TEST_F(CallCreditTest, AServerThatEndsTooManyCallsGivesNoCreditBack) {
  returns_ = 1;
  EXPECT_GT(Up(Begin(1) + Begin(3)), 0);
  Down(Trailers(1) + Reset(3));

  EXPECT_EQ(credit_.open(), 0);
  EXPECT_EQ(Up(Begin(5) + Begin(7)), Begin(5).size());
}

TEST_F(CallCreditTest, SavedCreditIsLimited) {
  const absl::Duration later = kStart + absl::Hours(1);
  EXPECT_EQ(Up(Begin(1) + Begin(3) + Begin(5) + Begin(7), kTerms, later), 3 * Begin(1).size());
}

TEST_F(CallCreditTest, OpenCallsAreLimitedByTheTerms) {
  EXPECT_EQ(Up(Begin(1) + Begin(3), {.open_max = 1}), Begin(1).size());
  Down(Trailers(1));
  EXPECT_EQ(Up(Begin(3), {.open_max = 1}), Begin(3).size());
}

TEST_F(CallCreditTest, InHardTimesOnlyConnectionsWithSavedCreditMayBegin) {
  EXPECT_EQ(Up(Begin(1) + Begin(3), {.open_max = 100, .above = 1}), Begin(1).size());
}

TEST_F(CallCreditTest, EndsOfMessagesAndOfTheClientsSideDoNotEndCalls) {
  EXPECT_GT(Up(Begin(1) + Frame(0, 1, 1, "message") + Frame(1, 5, 1, "trailers")), 0);
  Down(Frame(1, 4, 1, "headers") + Frame(0, 0, 1, "message"));
  EXPECT_EQ(credit_.open(), 1);
}

TEST_F(CallCreditTest, CountsTheBytesOfOpenCallsUpToAMessageEach) {
  EXPECT_GT(Up(Begin(1) + Frame(0, 0, 1, "12345") + Begin(3) + Frame(0, 0, 3, "123456")), 0);
  EXPECT_EQ(credit_.message_bytes(), 11);
  EXPECT_GT(Up(Frame(0, 0, 3, "123456") + Frame(0, 0, 99, "of no call")), 0);
  EXPECT_EQ(credit_.message_bytes(), 5 + kLimits.message_bytes_max);
  Down(Trailers(3));
  EXPECT_EQ(credit_.message_bytes(), 5);
  Up(Reset(1));
  EXPECT_EQ(credit_.message_bytes(), 0);
}

TEST_F(CallCreditTest, BytesMayArriveOneByOne) {
  const std::string calls = Frame(4, 0, 0) + Begin(1) + Frame(0, 0, 1, "message") + Begin(3);
  CallCredit credit(kLimits, kStart);
  std::string held;
  size_t passed = 0;
  for (const char byte : kPreface + calls) {
    held.push_back(byte);
    const auto some = credit.PassToServer(held, kTerms, kStart);
    ASSERT_TRUE(some.ok());
    passed += *some;
    held.erase(0, *some);
  }
  EXPECT_EQ(passed, 24 + calls.size());
  EXPECT_EQ(credit.open(), 2);

  const std::string ends = Trailers(1) + Trailers(3);
  for (const char byte : ends) {
    held.push_back(byte);
    held.erase(0, credit.PassToClient(held, returns_));
  }
  EXPECT_EQ(held, "");
  EXPECT_EQ(credit.open(), 0);
}

TEST(CallCreditGreetingTest, AConnectionThatDoesNotStartLikeHttp2IsRefused) {
  CallCredit credit(kLimits, kStart);
  EXPECT_TRUE(credit.PassToServer("PRI * HT", kTerms, kStart).ok());
  EXPECT_FALSE(credit.greeted());
  EXPECT_TRUE(absl::IsInvalidArgument(credit.PassToServer("TP/1.1", kTerms, kStart).status()));
}

// gRPC takes a call of an even number for no call, and the frames after it for new calls.
TEST_F(CallCreditTest, ACallOfAnEvenNumberEndsTheConnection) {
  for (const int stream : {0, 2, 0x7ffffffe}) {
    CallCredit credit({.first = 4, .most = 4, .per_second = 0}, absl::ZeroDuration());
    const auto passed = credit.PassToServer(kPreface + Begin(static_cast<uint32_t>(stream)), kTerms,
                                            absl::ZeroDuration());
    EXPECT_TRUE(absl::IsInvalidArgument(passed.status())) << stream;
  }
}

TEST_F(CallCreditTest, HeaderFieldsWithoutEndEndTheConnection) {
  const auto endless = [](size_t payload, int frames) {
    CallCredit credit({.first = 4, .most = 4, .per_second = 0}, absl::ZeroDuration());
    std::string bytes = kPreface + Frame(1, 0, 1, "fields");
    for (int i = 0; i < frames; ++i) {
      Http2Frame{
          .payload_bytes = payload, .type = Http2Frame::kContinuation, .flags = 0, .stream = 1}
          .AppendTo(bytes);
      bytes += std::string(payload, 'x');
    }
    return credit.PassToServer(bytes, kTerms, absl::ZeroDuration()).status();
  };
  EXPECT_TRUE(endless(100, 5).ok()) << "fields that need several frames";
  EXPECT_TRUE(absl::IsInvalidArgument(endless(6000, 3))) << "too many bytes";
  EXPECT_TRUE(absl::IsInvalidArgument(endless(0, 8))) << "too many frames";
}

// The server keeps such frames for a client that does not read.
TEST_F(CallCreditTest, FloodsOfControlFramesAreRefusedButAFewPerSecondAreNot) {
  const std::string begin = Begin(1);
  EXPECT_EQ(Up(begin), begin.size());
  const auto most = static_cast<int>(CallCredit::kControlFramesMax);
  for (const std::string& frame :
       {Frame(6, 0, 0, "12345678"), Frame(6, 1, 0, "12345678"), Frame(4, 0, 0), Frame(0, 0, 1)}) {
    CallCredit credit(kLimits, kStart);
    ASSERT_TRUE(credit.PassToServer(kPreface + begin, kTerms, kStart).ok());
    std::string frames;
    for (int i = 0; i < most; ++i) frames += frame;
    EXPECT_TRUE(credit.PassToServer(frames, kTerms, kStart).ok());
    EXPECT_TRUE(absl::IsInvalidArgument(credit.PassToServer(frame, kTerms, kStart).status()));
    const absl::Duration later = kStart + absl::Seconds(1);
    for (int i = 0; i < static_cast<int>(CallCredit::kControlFramesPerSecond); ++i) {
      EXPECT_TRUE(credit.PassToServer(frame, kTerms, later).ok()) << i;
    }
  }
  const std::string ping = Frame(6, 0, 0, "12345678");
  for (int i = 0; i < 2 * most; ++i) {
    EXPECT_EQ(Up(ping), ping.size());
    Down(Frame(6, 1, 0, "12345678"));
  }
  std::string others;  // messages, windows, and the end of a message
  for (int i = 0; i < 2 * most; ++i) others += Frame(0, 0, 1, "m") + Frame(8, 0, 0, "more");
  EXPECT_EQ(Up(others + Frame(0, 1, 1)), others.size() + Frame(0, 1, 1).size());
}

}  // namespace
}  // namespace muster::call_credit_test
