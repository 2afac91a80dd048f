#include "services/coordinator/status_page/status_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "lib/http/http_client.h"
#include "lib/status/status.h"
#include "lib/text/step_verdict.h"
#include "nlohmann/json.hpp"
#include "services/coordinator/status_page/fake_status.h"
#include "services/coordinator/status_page/status_json.h"

namespace muster::status_page_test {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kHostile[] = "</script><script>alert(1)</script>\" ' \xE2\x80\xAE \n data: x";

v1::Job MakeJob(int number, v1::JobState state, const std::string& message = "") {
  v1::Job job;
  job.set_name(absl::StrCat("jobs/job-", number));
  job.set_number(number);
  job.set_state(state);
  job.set_message(message);
  job.set_revision(1);
  job.mutable_spec()->set_name("job");
  return job;
}

absl::Status OneToken(absl::string_view secret) {
  if (secret == "muster.t-1.good") return absl::OkStatus();
  return WithReason(absl::UnauthenticatedError("the token is not known"), "TOKEN_INVALID");
}

class StatusPageTest : public ::testing::Test {
 protected:
  StatusPageTest() { Restart(PageAccess::Open()); }
  void Restart(PageAccess access, int streams_max = 4) {
    page_.reset();
    auto page = StatusPage::Start({.address = "127.0.0.1:0",
                                   .access = std::move(access),
                                   .version = "1.2.3",
                                   .change_interval = absl::Milliseconds(5),
                                   .streams_max = streams_max},
                                  &status_);
    ASSERT_TRUE(page.ok()) << page.status();
    page_ = *std::move(page);
  }
  HttpAnswer Get(absl::string_view path, absl::string_view headers = "") {
    return Fetch(page_->port(), path, headers);
  }
  json GetJson(absl::string_view path) {
    const HttpAnswer answer = Get(path);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body);
  }

  FakeStatus status_;
  std::unique_ptr<StatusPage> page_;
};

std::vector<std::string> NamesOf(const json& list) {
  std::vector<std::string> names;
  for (const json& one : list) names.push_back(one["name"]);
  return names;
}

TEST_F(StatusPageTest, ListsJobsNewestFirstInPagesAndByState) {
  for (int number = 1; number <= 5; ++number) {
    status_.Put(MakeJob(number, number % 2 == 0 ? v1::RUNNING : v1::FAILED));
  }
  const json first = GetJson("/api/v1/jobs?page_size=2");
  EXPECT_THAT(NamesOf(first["jobs"]), ElementsAre("jobs/job-5", "jobs/job-4"));
  const json second = GetJson(absl::StrCat("/api/v1/jobs?page_size=2&page_token=",
                                           first["next_page_token"].get<std::string>()));
  EXPECT_THAT(NamesOf(second["jobs"]), ElementsAre("jobs/job-3", "jobs/job-2"));
  EXPECT_THAT(NamesOf(GetJson("/api/v1/jobs?states=RUNNING")["jobs"]),
              ElementsAre("jobs/job-4", "jobs/job-2"));
  EXPECT_EQ(GetJson("/api/v1/jobs/job-3")["state"], "FAILED");
}

TEST_F(StatusPageTest, ReportsAMessageWithoutAJsonForm) {
  v1::Job job = MakeJob(1, v1::RUNNING);
  job.mutable_spec()->mutable_start_timeout()->set_nanos(2'000'000'000);
  status_.Put(job);

  EXPECT_THAT(GetJson("/api/v1/jobs/job-1")["what"].get<std::string>(),
              HasSubstr("muster.v1.Job cannot be shown as JSON"));
  EXPECT_EQ(GetJson("/api/v1/jobs/job-1")["reason"], "INTERNAL");
}

TEST_F(StatusPageTest, WithoutJobsTheListsAreEmpty) {
  EXPECT_THAT(GetJson("/api/v1/jobs")["jobs"], IsEmpty());
  EXPECT_THAT(GetJson("/api/v1/queue")["jobs"], IsEmpty());
  EXPECT_EQ(GetJson("/api/v1/server"),
            json({{"version", "1.2.3"}, {"term", "3"}, {"signed_in", false}}));
}

TEST_F(StatusPageTest, TheQueueIsInTheOrderOfService) {
  status_.Put(MakeJob(1, v1::QUEUED, "waits for 2 workers"));
  v1::Job urgent = MakeJob(2, v1::QUEUED);
  urgent.mutable_spec()->set_priority(7);
  status_.Put(urgent);
  status_.Put(MakeJob(3, v1::RECOVERING));
  status_.Put(MakeJob(4, v1::RUNNING));
  const json queue = GetJson("/api/v1/queue");
  EXPECT_THAT(NamesOf(queue["jobs"]), ElementsAre("jobs/job-3", "jobs/job-2", "jobs/job-1"));
  EXPECT_EQ(queue["jobs"][2]["message"], "waits for 2 workers");
}

TEST_F(StatusPageTest, ALongQueueIncludesItsHead) {
  for (int number = 1; number <= 501; ++number) status_.Put(MakeJob(number, v1::QUEUED));
  const json jobs = GetJson("/api/v1/queue")["jobs"];
  ASSERT_EQ(jobs.size(), 500);
  EXPECT_EQ(jobs[0]["name"], "jobs/job-1");
  EXPECT_EQ(jobs[499]["name"], "jobs/job-500");
}

TEST_F(StatusPageTest, SeriesHaveTheRequestedNumberOfPoints) {
  std::string log = ::testing::TempDir() + "/page-XXXXXX";
  ASSERT_NE(mkdtemp(log.data()), nullptr);
  log += "/metrics.jsonl";
  std::ofstream file(log);
  for (int step = 0; step < 100; ++step) {
    file << "{\"step\":" << step << ",\"loss\":" << (step == 50 ? "null" : absl::StrCat(step))
         << ",\"gradient_norm\":0.1}\n";
  }
  file << "{\"step\":60,\"evaluation_loss\":0.5}\n";
  file.close();
  status_.Put(MakeJob(1, v1::SUCCEEDED), log);

  const json series =
      GetJson("/api/v1/jobs/job-1/series?names=loss,evaluation_loss&from=40&to=59&points=2");

  EXPECT_EQ(series["last_step"], 99);
  EXPECT_EQ(series["series"][0]["name"], "loss");
  EXPECT_EQ(series["series"][0]["points"], json::parse("[[40,49,40,49,49],[50,59,51,59,59]]"));
  EXPECT_THAT(series["series"][1]["points"], IsEmpty());
  EXPECT_EQ(GetJson("/api/v1/jobs/job-1/series?names=loss&from=50&to=50")["series"][0]["points"],
            json::parse("[[50,50,null,null,null]]"));
}

TEST_F(StatusPageTest, ReturnsEventsCheckpointsAndMembers) {
  status_.Put(MakeJob(1, v1::RUNNING));
  v1::JobEvent event;
  event.set_revision(7);
  event.set_reason("MEMBER_LOST");
  status_.PutEvent("jobs/job-1", event);
  v1::Checkpoint checkpoint;
  checkpoint.set_name("jobs/job-1/checkpoints/10");
  checkpoint.set_job("job-1");
  checkpoint.add_files()->set_name("model.safetensors");
  status_.PutCheckpoint(checkpoint, "bytes");
  v1::Member member;
  member.set_name("worker-0");
  status_.PutMember(member);

  EXPECT_EQ(GetJson("/api/v1/jobs/job-1/events")["events"][0]["reason"], "MEMBER_LOST");
  EXPECT_THAT(GetJson("/api/v1/jobs/job-1/events?after=7")["events"], IsEmpty());
  EXPECT_THAT(NamesOf(GetJson("/api/v1/jobs/job-1/checkpoints")["checkpoints"]),
              ElementsAre("jobs/job-1/checkpoints/10"));
  EXPECT_THAT(NamesOf(GetJson("/api/v1/members")["members"]), ElementsAre("worker-0"));
  const HttpAnswer file = Get("/api/v1/jobs/job-1/checkpoints/10/files/model.safetensors");
  EXPECT_EQ(file.body, "bytes");
  EXPECT_THAT(file.head, HasSubstr("Content-Length: 5\r\n"));
  EXPECT_THAT(file.head, HasSubstr("attachment; filename=\"model.safetensors\"\r\n"));
  EXPECT_EQ(Get("/api/v1/jobs/job-1/checkpoints/10/files/other").status, 404);
}

TEST_F(StatusPageTest, ReadsAMembersLogFromAnOffset) {
  status_.PutLog("w-0", absl::StrCat("first\n", kHostile, "\xff\n"));
  const json log = GetJson("/api/v1/members/w-0/log");
  EXPECT_EQ(log["offset"], "0");
  EXPECT_EQ(log["incarnation"], "one");
  EXPECT_EQ(log["text"], absl::StrCat("first\n", kHostile, "\xEF\xBF\xBD\n"))
      << "text, whatever it says; what is no UTF-8 is marked";
  const json rest = GetJson(
      absl::StrCat("/api/v1/members/w-0/log?offset=", log["next_offset"].get<std::string>()));
  EXPECT_EQ(rest["text"], "");
  EXPECT_EQ(GetJson("/api/v1/members/w-0/log?bytes=1")["text"], "\n");
  EXPECT_EQ(Get("/api/v1/members/w-9/log").status, 404);
  EXPECT_EQ(Get("/api/v1/members/w-0/log?offset=much").status, 400);
  EXPECT_EQ(Get("/api/v1/members/w-0/lo").status, 404);
}

TEST_F(StatusPageTest, ReturnsTheStepTimesOfEachWorker) {
  status_.Put(MakeJob(1, v1::RUNNING));
  EXPECT_EQ(GetJson("/api/v1/jobs/job-1/timing"), json::object());
  v1::ReadJobTimingResponse timing;
  timing.add_members()->set_member("w-0");
  timing.mutable_members(0)->mutable_timing()->set_wait_seconds(0.25);
  status_.PutTiming("jobs/job-1", timing);
  EXPECT_EQ(GetJson("/api/v1/jobs/job-1/timing")["members"],
            json::parse(R"([{"member": "w-0", "timing": {"wait_seconds": 0.25}}])"));
  EXPECT_FALSE(GetJson("/api/v1/jobs/job-1/timing").contains("verdict"))
      << "no worker has finished a step";

  v1::StepTiming& steps = *timing.mutable_members(0)->mutable_timing();
  steps.set_steps(10);
  steps.set_step_seconds(0.3);
  steps.set_compute_seconds(0.05);
  status_.PutTiming("jobs/job-1", timing);
  EXPECT_EQ(GetJson("/api/v1/jobs/job-1/timing")["verdict"], json(StepVerdict(StepCosts(timing))))
      << "the lines of `muster top`";
}

TEST_F(StatusPageTest, ReturnsTheTransportOfEachLink) {
  status_.Put(MakeJob(1, v1::RUNNING));
  EXPECT_EQ(GetJson("/api/v1/jobs/job-1/links"), json::object());
  v1::ReadJobLinksResponse links;
  v1::MemberLinks& member = *links.add_members();
  member.set_member("w-0");
  member.set_links_left_out(3);
  v1::LinkReport& link = *member.add_links();
  link.set_peer(kHostile);
  link.set_transport("tcp");
  link.set_security("encrypt");
  link.set_sent_bytes(int64_t{1} << 60);
  status_.PutLinks("jobs/job-1", links);
  EXPECT_EQ(GetJson("/api/v1/jobs/job-1/links"),
            json({{"members",
                   {{{"member", "w-0"},
                     {"links",
                      {{{"peer", kHostile},
                        {"transport", "tcp"},
                        {"security", "encrypt"},
                        {"sent_bytes", "1152921504606846976"}}}},
                     {"links_left_out", 3}}}}}));
  EXPECT_EQ(Get("/api/v1/jobs/nobody/links").status, 404);
}

TEST_F(StatusPageTest, ReturnsErrorsAsJson) {
  status_.Put(MakeJob(1, v1::RUNNING));
  const std::vector<std::pair<std::string, std::pair<int, std::string>>> expected = {
      {"/api/v1/jobs/nobody", {404, "JOB_NOT_FOUND"}},
      {"/api/v1/jobs/nobody/series", {404, "JOB_NOT_FOUND"}},
      {"/api/v1/nothing", {404, "PATH_NOT_FOUND"}},
      {"/api/v1/jobs/job-1/nothing", {404, "PATH_NOT_FOUND"}},
      {"/elsewhere", {404, "PATH_NOT_FOUND"}},
      {"/api/v1/jobs?states=RUNING", {400, "INVALID_REQUEST"}},
      {"/api/v1/jobs?page_size=many", {400, "INVALID_REQUEST"}},
      {"/api/v1/jobs?view=upside_down", {400, "INVALID_REQUEST"}},
      {"/api/v1/jobs/job-1/series?names=los", {400, "INVALID_REQUEST"}},
      {"/api/v1/jobs/job-1/series?points=0", {400, "INVALID_REQUEST"}},
  };
  for (const auto& [path, wanted] : expected) {
    const HttpAnswer answer = Get(path);
    EXPECT_EQ(answer.status, wanted.first) << path;
    const json error = json::parse(answer.body);
    EXPECT_EQ(error["reason"], wanted.second) << path;
    EXPECT_NE(error["what"], "") << path;
    EXPECT_NE(error["try"], "") << path;
  }
  const HttpAnswer posted = Fetch(page_->port(), "/api/v1/jobs", "", "POST", "x");
  EXPECT_EQ(posted.status, 405);
  EXPECT_THAT(posted.head, HasSubstr("Allow: GET, HEAD\r\n"));
}

TEST_F(StatusPageTest, EveryResponseHasTheSecurityHeaders) {
  for (const char* path : {"/", "/page.js", "/api/v1/jobs", "/api/v1/nothing", "/elsewhere"}) {
    const std::string head = Get(path).head;
    EXPECT_THAT(head, HasSubstr("Content-Security-Policy: default-src 'none'; script-src 'self';"))
        << path;
    EXPECT_THAT(head, Not(HasSubstr("unsafe")));
    EXPECT_THAT(head, HasSubstr("frame-ancestors 'none'"));
    EXPECT_THAT(head, HasSubstr("X-Content-Type-Options: nosniff\r\n")) << path;
    EXPECT_THAT(head, Not(HasSubstr("Access-Control-"))) << path;
  }
  EXPECT_THAT(Get("/api/v1/jobs").head, HasSubstr("Cache-Control: no-store\r\n"));
}

TEST_F(StatusPageTest, ThePageLoadsNothingFromElsewhereAndHasNoScriptOfItsOwn) {
  const std::string html = Get("/").body;
  EXPECT_THAT(html, HasSubstr("<!doctype html>"));
  EXPECT_THAT(html, Not(HasSubstr("://")));
  EXPECT_THAT(html, Not(HasSubstr("style=")));
  EXPECT_THAT(html, Not(HasSubstr(" onclick")));
  for (absl::string_view rest : absl::StrSplit(html, "<script")) {
    if (rest.data() == html.data()) continue;
    EXPECT_TRUE(absl::StartsWith(rest, " src=\"/")) << rest.substr(0, 40);
  }
  // The script inserts text only as text.
  const std::string script = Get("/page.js").body;
  for (const char* forbidden : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write",
                                "eval(", "new Function", "://"}) {
    EXPECT_THAT(absl::StrReplaceAll(script, {{"http://www.w3.org/2000/svg", ""}}),
                Not(HasSubstr(forbidden)));
  }
}

TEST_F(StatusPageTest, EachFileHasItsContentType) {
  for (const auto& [path, type] :
       std::vector<std::pair<std::string, std::string>>{{"/", "text/html"},
                                                        {"/page.js", "text/javascript"},
                                                        {"/dygraph.js", "text/javascript"},
                                                        {"/page.css", "text/css"},
                                                        {"/dygraph.css", "text/css"}}) {
    EXPECT_THAT(Get(path).head, HasSubstr("\r\nContent-Type: " + type + "; charset=utf-8\r\n"));
  }
}

TEST_F(StatusPageTest, AnUnchangedFileIsNotSentAgain) {
  const HttpAnswer first = Get("/page.js");
  const size_t begin = first.head.find("ETag: ") + 6;
  const std::string version = first.head.substr(begin, first.head.find("\r\n", begin) - begin);
  const HttpAnswer again = Get("/page.js", absl::StrCat("If-None-Match: ", version, "\r\n"));
  EXPECT_EQ(again.status, 304);
  EXPECT_THAT(again.body, IsEmpty());
  EXPECT_EQ(Get("/page.js", "If-None-Match: \"other\"\r\n").status, 200);
}

TEST_F(StatusPageTest, HostileTextStaysText) {
  v1::Job job = MakeJob(1, v1::FAILED, kHostile);
  status_.Put(job);
  const HttpAnswer answer = Get("/api/v1/jobs/job-1");
  EXPECT_EQ(json::parse(answer.body)["message"], kHostile);
  EXPECT_THAT(answer.head, HasSubstr("Content-Type: application/json; charset=utf-8\r\n"));
  const json error = json::parse(Get("/api/v1/jobs/%3Cscript%3E%ff").body);
  EXPECT_EQ(error["reason"], "JOB_NOT_FOUND");
}

TEST_F(StatusPageTest, WithoutTlsAnswersOnlyToLoopbackNames) {
  for (const char* host : {"localhost:8080", "127.0.0.1:1", "[::1]:8080", "LOCALHOST", "[::1]"}) {
    EXPECT_EQ(Get("/api/v1/jobs", absl::StrCat("Host: ", host, "\r\n")).status, 200) << host;
  }
  for (const char* host : {"evil.example:8080", "localhost.evil.example", "127.0.0.1.example"}) {
    const HttpAnswer answer = Get("/api/v1/jobs", absl::StrCat("Host: ", host, "\r\n"));
    EXPECT_EQ(answer.status, 403) << host;
    EXPECT_EQ(json::parse(answer.body)["reason"], "HOST_NOT_ALLOWED");
  }
}

TEST_F(StatusPageTest, WithTokensRefusesRequestsWithoutOne) {
  Restart(PageAccess::Checked(OneToken, /*secure=*/false));
  status_.Put(MakeJob(1, v1::RUNNING));
  for (const char* path :
       {"/api/v1/jobs", "/api/v1/jobs/job-1", "/api/v1/jobs/nobody", "/api/v1/jobs/job-1/series",
        "/api/v1/jobs/job-1/events", "/api/v1/jobs/job-1/checkpoints", "/api/v1/jobs/job-1/links",
        "/api/v1/members", "/api/v1/queue", "/api/v1/events", "/api/v1/server", "/api/v1/nothing",
        "/api/v1/jobs/job-1/checkpoints/1/files/a"}) {
    for (const char* header :
         {"", "Authorization: Bearer wrong\r\n", "Authorization: Basic bXVzdGVyLnQtMS5nb29k\r\n",
          "Cookie: muster=wrong\r\n", "Cookie: other=muster.t-1.good\r\n",
          "Authorization: Bearer muster.t-1.good\r\nAuthorization: Bearer x\r\n"}) {
      const HttpAnswer answer = Get(path, header);
      EXPECT_EQ(answer.status, 401) << path << " " << header;
      EXPECT_THAT(answer.head, HasSubstr("WWW-Authenticate: Bearer\r\n"));
      EXPECT_THAT(answer.body, Not(HasSubstr("job-1")));
    }
  }
  EXPECT_EQ(Get("/api/v1/jobs", "Authorization: Bearer muster.t-1.good\r\n").status, 200);
  EXPECT_EQ(Get("/").status, 200);  // the page to sign in
}

TEST_F(StatusPageTest, SigningInSetsACookieThatScriptsCannotRead) {
  Restart(PageAccess::Checked(OneToken, /*secure=*/false));
  const HttpAnswer in = Fetch(page_->port(), "/login", "", "POST", "token=muster.t-1.good%0A");
  EXPECT_EQ(in.status, 204);
  EXPECT_THAT(in.head, HasSubstr("Set-Cookie: muster=muster.t-1.good; Path=/; Max-Age=43200; "
                                 "HttpOnly; SameSite=Strict\r\n"));
  EXPECT_EQ(Get("/api/v1/jobs", "Cookie: a=b; muster=muster.t-1.good\r\n").status, 200);
  EXPECT_THAT(Fetch(page_->port(), "/logout", "", "POST", "x=1").head,
              HasSubstr("Set-Cookie: muster=; Path=/; Max-Age=0"));

  EXPECT_EQ(Fetch(page_->port(), "/login", "", "POST", "token=wrong").status, 401);
  EXPECT_EQ(Fetch(page_->port(), "/login", "", "POST", "nothing=1").status, 401);
  EXPECT_EQ(Fetch(page_->port(), "/login", "Sec-Fetch-Site: cross-site\r\n", "POST",
                  "token=muster.t-1.good")
                .status,
            403);
}

TEST(PageAccessTest, WithTlsTheCookieIsNeverSentWithoutTls) {
  const PageAccess access = PageAccess::Checked(OneToken, /*secure=*/true);
  const HttpResponse in = access.SignIn({.body = "token=muster.t-1.good"});
  ASSERT_EQ(in.headers.size(), 1);
  EXPECT_EQ(in.headers[0].second,
            "__Host-muster=muster.t-1.good; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict; "
            "Secure");
  HttpRequest request{.headers = {{"Host", "anything"}, {"Cookie", "muster=muster.t-1.good"}}};
  EXPECT_EQ(ReasonOf(access.Admit(request)), "NO_CREDENTIALS");
  const json refused = json::parse(ToJson(access.Admit(request)));
  EXPECT_EQ(refused["what"], "the request has no token");
  EXPECT_THAT(refused["try"].get<std::string>(), HasSubstr("sign in on the page"));
  request.headers[1].second = "__Host-muster=muster.t-1.good";
  EXPECT_TRUE(access.Admit(request).ok());
}

TEST_F(StatusPageTest, StreamsReportChanges) {
  status_.Put(MakeJob(1, v1::RUNNING));
  HttpClient listener(page_->port());
  listener.Write("GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(listener.ReadUntil("event: hello"), HasSubstr("text/event-stream"));

  v1::Job job = MakeJob(1, v1::RUNNING, kHostile);
  job.mutable_progress()->set_step(17);
  status_.Put(job);
  listener.ReadUntil("\"step\":\"17\"");
  status_.Put(MakeJob(2, v1::QUEUED));
  listener.ReadUntil("jobs/job-2");
  v1::Member member;
  member.set_name("worker-0");
  status_.PutMember(member);
  listener.ReadUntil("event: members");
  status_.Remove("jobs/job-2");
  const std::string& all = listener.ReadUntil("event: deleted");
  // Every event is on a line of its own: a job's message cannot begin another one.
  for (absl::string_view line : absl::StrSplit(all.substr(all.find("retry:")), '\n')) {
    EXPECT_TRUE(line.empty() || absl::StartsWith(line, "event: ") ||
                absl::StartsWith(line, "data: {") || line == "retry: 2000")
        << line;
  }
}

// Only ended jobs can be deleted in production.
TEST_F(StatusPageTest, StreamsReportTheDeletionOfAnEndedJob) {
  status_.Put(MakeJob(1, v1::RUNNING));
  HttpClient listener(page_->port());
  listener.Write("GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
  listener.ReadUntil("event: hello");
  status_.Put(MakeJob(1, v1::SUCCEEDED));
  listener.ReadUntil("SUCCEEDED");
  status_.Remove("jobs/job-1");
  listener.ReadUntil("event: deleted\ndata: {\"name\":\"jobs/job-1\"}");
}

TEST_F(StatusPageTest, StreamsAreLimitedAndEndWithThePage) {
  Restart(PageAccess::Open(), /*streams_max=*/2);
  HttpClient one(page_->port()), two(page_->port());
  for (HttpClient* client : {&one, &two}) {
    client->Write("GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client->ReadUntil("event: hello");
  }
  const HttpAnswer third = Get("/api/v1/events");
  EXPECT_EQ(third.status, 429);
  EXPECT_EQ(json::parse(third.body)["reason"], "TOO_MANY_CALLS");
  EXPECT_THAT(json::parse(third.body)["what"].get<std::string>(), Not(HasSubstr("close one")))
      << "`try` has the remedy";
  EXPECT_EQ(Get("/api/v1/jobs").status, 200);
  page_.reset();
  one.ReadAll();  // returns, because the stream ends
}

TEST(ChangeFeedTest, AStreamBeatsUntilItEndsByAge) {
  FakeStatus status;
  ChangeFeed feed({.source = &status,
                   .interval = absl::Milliseconds(1),
                   .stream_life = absl::Milliseconds(200),
                   .heartbeat = absl::Milliseconds(5)});
  const auto stream = feed.Open();
  ASSERT_TRUE(stream.ok());
  EXPECT_EQ((*stream)->Next(), ":\n\n");
  while ((*stream)->Next()) continue;
}

}  // namespace
}  // namespace muster::status_page_test
