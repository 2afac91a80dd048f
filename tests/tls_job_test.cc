// A job as in production: TLS on both planes, certificates that are renewed during training, and
// members that die. It reaches the same parameters.
#include <openssl/bio.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/substitute.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "lib/security/certificate.h"
#include "lib/security/identity.h"
#include "tests/certificates.h"
#include "tests/training_cluster.h"

namespace muster::tls_job_test {
namespace {

using ::testing::HasSubstr;

// Returns a job whose steps take some three milliseconds. Checkpoint files contain the job's name,
// so jobs whose hashes are compared must have one name.
std::string Job(int64_t steps) {
  return absl::Substitute(R"(
name: sealed
model: {zoo: {name: gpt, args: {layers: 2, heads: 2, channels: 64, context: 32, dropout: 0.1}}}
data: {text: {path: examples/data/licences, holdout: 0.05}, batch_size: 8, seed: 1}
training: {steps: $0, optimizer: {adamw: {learning_rate: 1e-3}}, seed: 9}
resources: {workers: {min: 2, max: 2}, ps: 2}
checkpoint: {every_steps: 300, keep_last: 2}
)",
                          steps);
}

std::string MakeFolder() {
  std::string path = ::testing::TempDir() + "/tls-XXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

// Returns the SHA-256 of the certificate that `address` shows, or "" if nothing answers. The
// coordinator hangs up on clients that do not use HTTP/2. OpenSSL then still sends its closing
// message, which raises SIGPIPE.
std::string CertificateAt(const std::string& address) {
  signal(SIGPIPE, SIG_IGN);
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  SSL_CTX_free);
  const std::unique_ptr<BIO, decltype(&BIO_free_all)> connection(BIO_new_ssl_connect(context.get()),
                                                                 BIO_free_all);
  BIO_set_conn_hostname(connection.get(), address.c_str());
  SSL* ssl = nullptr;
  if (BIO_do_connect(connection.get()) != 1 || BIO_get_ssl(connection.get(), &ssl) != 1) return "";
  const std::unique_ptr<X509, decltype(&X509_free)> shown(SSL_get1_peer_certificate(ssl),
                                                          X509_free);
  return shown == nullptr ? "" : FactsOf(shown.get()).sha256;
}

TEST(TlsJobTest, RenewedCertificatesAndDeathsChangeNothing) {
  Certificates certificates;
  const std::vector<std::string> links = {"--transport=tcp", "--data_security=encrypt"};
  auto flags = [&](Role role) {
    std::vector<std::string> all = links;
    all.push_back(certificates.Flag(role));
    return all;
  };
  TrainingCluster cluster(
      {.ps = 2,
       .workers = 2,
       .ps_threads = 1,
       .coordinator_flags = {certificates.Flag(Role::kCoordinator)},
       .ps_flags = flags(Role::kPs),
       .worker_flags = flags(Role::kWorker),
       .security = {.tls = certificates.Folder(Role::kAdmin).path, .token_file = ""}});
  // The job has no end; the test suspends it at the end.
  const std::string job = cluster.Submit(Job(1'000'000'000));
  int recoveries = 0;
  for (const char* member : {"worker-1", "ps-0", "coordinator", "worker-0", "ps-1"}) {
    SCOPED_TRACE(member);
    certificates.Renew();
    const absl::Time patience = absl::Now() + absl::Seconds(30);
    while (CertificateAt(cluster.members().address()) != certificates.coordinators()) {
      ASSERT_LT(absl::Now(), patience) << "the coordinator still shows the old certificate";
    }
    const int64_t until = 200 * (recoveries + 1);
    cluster.Await(job, [&](const v1::Job& seen) {
      return seen.state() == v1::RUNNING && seen.recovery().count() == recoveries &&
             seen.progress().step() >= until;
    });
    ASSERT_TRUE(cluster.members().Kill(member, SIGKILL).ok());
    if (member != std::string("coordinator")) {
      ++recoveries;
      cluster.Await(
          job, [&](const v1::Job& seen) { return seen.recovery().count() == recoveries; },
          absl::Seconds(60));
    }
    ASSERT_TRUE(cluster.members().Restart(member).ok());
  }
  cluster.Await(job, [&](const v1::Job& seen) {
    return seen.state() == v1::RUNNING && seen.recovery().count() == recoveries;
  });
  grpc::ClientContext context;
  v1::SuspendJobRequest request;
  v1::Job suspended;
  request.set_name(job);
  ASSERT_TRUE(cluster.jobs().SuspendJob(&context, request, &suspended).ok());
  const int64_t step = cluster.AwaitState(job, v1::SUSPENDED).progress().step();
  const std::string undisturbed = cluster.Run(Job(step));
  EXPECT_EQ(cluster.Hashes(job, step), cluster.Hashes(undisturbed, step)) << "at step " << step;
}

// The coordinator closes connections after one second (the default is an hour). Members must attach
// again, and calls must continue on new connections.
TEST(TlsJobTest, ConnectionsThatHaveGrownOldAreMadeAnewAndNothingIsLost) {
  Certificates certificates;
  TrainingCluster cluster(
      {.ps = 2,
       .workers = 2,
       .ps_threads = 1,
       .coordinator_flags = {certificates.Flag(Role::kCoordinator), "--connection_age=1s"},
       .ps_flags = {certificates.Flag(Role::kPs)},
       .worker_flags = {certificates.Flag(Role::kWorker)},
       .security = {.tls = certificates.Folder(Role::kAdmin).path, .token_file = ""}});
  const std::string job = cluster.Submit(Job(1'000'000'000));
  cluster.AwaitState(job, v1::RUNNING);
  constexpr size_t kStreams = 4;                         // of each member, one after another
  std::map<std::string, std::set<std::string>> streams;  // by member: the start of each stream
  const auto all_have_attached_again = [&] {
    const auto members = cluster.members().ListMembers();
    EXPECT_TRUE(members.ok()) << members.status();
    for (const v1::Member& member : members->members()) {
      streams[member.name()].insert(member.attach_time().ShortDebugString());
    }
    return streams.size() == 4 && std::all_of(streams.begin(), streams.end(), [&](const auto& of) {
             return of.second.size() >= kStreams;
           });
  };
  const absl::Time patience = absl::Now() + absl::Seconds(60);
  while (!all_have_attached_again()) {
    ASSERT_LT(absl::Now(), patience) << "a member has a connection that has grown old";
  }

  grpc::ClientContext context;
  v1::SuspendJobRequest request;
  v1::Job suspended;
  request.set_name(job);
  ASSERT_TRUE(cluster.jobs().SuspendJob(&context, request, &suspended).ok());
  const v1::Job done = cluster.AwaitState(job, v1::SUSPENDED);
  EXPECT_EQ(done.recovery().count(), 0);
  const int64_t step = done.progress().step();
  const std::vector<StepMetrics> metrics = cluster.Metrics(job);
  ASSERT_EQ(std::ssize(metrics), step);
  for (int64_t i = 0; i < step; ++i) ASSERT_EQ(metrics[i].step, i);
  const std::string undisturbed = cluster.Run(Job(step));
  EXPECT_EQ(cluster.Hashes(job, step), cluster.Hashes(undisturbed, step)) << "at step " << step;
}

// The error that a member gets without a certificate, or with one of another authority.
TEST(TlsJobTest, WhoDoesNotBelongIsNotOneOfThem) {
  Certificates ours, others;
  const auto started = cli::LocalCluster::Start(
      {.dir = MakeFolder(),
       .ps = 1,
       .workers = 0,
       .coordinator_flags = {ours.Flag(Role::kCoordinator)},
       .ps_flags = {others.Flag(Role::kPs)},
       .security = {.tls = ours.Folder(Role::kAdmin).path, .token_file = ""},
       .start_timeout = absl::Seconds(5)});
  ASSERT_FALSE(started.ok());
  EXPECT_THAT(std::string(started.status().message()), HasSubstr("ps-0"));
  EXPECT_THAT(std::string(started.status().message()), HasSubstr("certificate"));
}

}  // namespace
}  // namespace muster::tls_job_test
