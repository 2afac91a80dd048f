#include "lib/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "lib/http/http_client.h"

namespace muster::http_server_test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::unique_ptr<HttpServer> Serve(HttpServer::Handler handler, int timeout_ms = 20'000) {
  auto server = HttpServer::Start({.address = "127.0.0.1:0",
                                   .timeout_ms = timeout_ms,
                                   .headers = {"X-Content-Type-Options: nosniff"}},
                                  std::move(handler));
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

HttpResponse Echo(const HttpRequest& request) {
  return {.content_type = "text/plain",
          .body = absl::StrCat(request.method, " ", request.path, " ", request.query, " ",
                               request.Header("x-mine"), " ", request.body)};
}

TEST(HttpServerTest, ARequestHasItsPathQueryHeadersAndBody) {
  const auto server = Serve(Echo);
  const HttpAnswer answer = Fetch(server->port(), "/a%20b?c=%41", "X-Mine: 7\r\n", "POST", "form");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "POST /a b c=%41 7 form");
  EXPECT_THAT(answer.head, HasSubstr("Content-Type: text/plain\r\n"));
  EXPECT_THAT(answer.head, HasSubstr("X-Content-Type-Options: nosniff\r\n"));
  EXPECT_THAT(answer.head, HasSubstr("Connection: close\r\n"));
}

TEST(HttpServerTest, APathCannotLeaveItsRoot) {
  const auto server = Serve(Echo);
  EXPECT_THAT(Fetch(server->port(), "/a/../../b").body, Not(HasSubstr("..")));
  EXPECT_THAT(Fetch(server->port(), "/a/%2e%2e/b").body, Not(HasSubstr("..")));
}

TEST(HttpServerTest, AHeadRequestGetsNoBody) {
  const auto server = Serve(Echo);
  const HttpAnswer answer = Fetch(server->port(), "/", "", "HEAD");
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.head, HasSubstr("Content-Length: 8\r\n"));
  EXPECT_THAT(answer.body, IsEmpty());
}

TEST(HttpServerTest, AHeaderPresentTwiceHasNoValue) {
  HttpRequest request{.headers = {{"X-A", "1"}, {"x-a", "2"}, {"X-B", "3"}}};
  EXPECT_EQ(request.Header("x-a"), "");
  EXPECT_EQ(request.Header("x-b"), "3");
}

TEST(HttpServerTest, OversizedRequestsAreRefusedBeforeTheHandlerRuns) {
  std::atomic<int> calls = 0;
  const auto server = Serve([&](const HttpRequest&) {
    ++calls;
    return HttpResponse{};
  });
  EXPECT_EQ(Fetch(server->port(), "/", "", "POST", std::string(5000, 'x')).status, 413);
  const HttpAnswer long_header =
      Fetch(server->port(), "/", absl::StrCat("X: ", std::string(20'000, 'x'), "\r\n"));
  EXPECT_THAT(long_header.status, AnyOf(0, 400, 413, 431)) << long_header.head;
  EXPECT_THAT(Fetch(server->port(), "/\x01", "no header\r\n").status, AnyOf(0, 400));
  EXPECT_EQ(calls, 0);
}

TEST(HttpServerTest, ARequestThatTakesTooLongIsGivenUp) {
  const auto server = Serve(Echo, /*timeout_ms=*/200);
  HttpClient slow(server->port());
  slow.Write("GET / HTTP/1.1\r\nHost: lo");
  EXPECT_THAT(slow.ReadAll(), Not(HasSubstr("200 OK")));
  EXPECT_EQ(Fetch(server->port(), "/").status, 200);
}

// Each byte arrives in time, but the whole body would take 40 s.
TEST(HttpServerTest, ABodyThatArrivesSlowlyIsGivenUp) {
  const auto server = Serve(Echo, /*timeout_ms=*/200);
  HttpClient client(server->port());
  client.Write("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000\r\n\r\n");
  int sent = 0;
  while (client.Write("x") && ++sent < 3900) poll(nullptr, 0, /*timeout=*/10);
  EXPECT_LT(sent, 3900) << "the server waited for the whole body";
}

TEST(HttpServerTest, PagesOfOtherOriginsAreRefused) {
  const auto server = Serve(Echo);
  const HttpAnswer answer =
      Fetch(server->port(), "/",
            "Origin: http://elsewhere\r\nAccess-Control-Request-Method: POST\r\n", "OPTIONS");
  EXPECT_THAT(answer.head, Not(HasSubstr("Access-Control-Allow-Origin: ")));
}

TEST(HttpServerTest, AStreamEndsIfItsReaderReadsNothing) {
  absl::Notification ended;
  const auto server = Serve(
      [&](const HttpRequest&) {
        return HttpResponse{.stream = [&](HttpStream& stream) {
          const std::string block(64 << 10, 'x');
          while (stream.Write(block)) continue;
          ended.Notify();
        }};
      },
      /*timeout_ms=*/300);
  HttpClient lazy(server->port(), /*receive_buffer_bytes=*/4096);
  lazy.Write("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(20)));
}

TEST(HttpServerTest, InvalidAddressesAndPortsInUseAreErrors) {
  for (const char* address : {"nowhere", "9401", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:-1",
                              "127.0.0.1:http", "127.0.0.1:0s"}) {
    const absl::Status status = HttpServer::Start({.address = address}, Echo).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << address << ": " << status;
    EXPECT_THAT(status.message(), HasSubstr("is not host:port with a port of 0 to 65535"));
  }
  const auto server = Serve(Echo);
  const std::string taken = absl::StrCat("127.0.0.1:", server->port());
  const absl::Status status = HttpServer::Start({.address = taken}, Echo).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot listen on " + taken + " ("));
  EXPECT_THAT(std::string(status.message()), HasSubstr("Port 0 picks a free one"));
}

TEST(HttpServerTest, FormValuesAreDecoded) {
  EXPECT_EQ(FormValue("a=1&token=x%2By+z", "token"), "x+y z");
  EXPECT_EQ(FormValue("a=1", "token"), std::nullopt);
  EXPECT_EQ(FormValue("", "token"), std::nullopt);
}

}  // namespace
}  // namespace muster::http_server_test
