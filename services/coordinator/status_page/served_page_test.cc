// Tests the page of a coordinator with certificates, as the program serves it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "lib/http/http_client.h"
#include "lib/http/relay/tls_client.h"
#include "lib/security/certificate.h"
#include "lib/security/identity.h"
#include "lib/security/tls_folder.h"
#include "services/coordinator/testing/coordinator_process.h"

namespace muster::served_page_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ServedPageTest, WithCertificatesThePageIsHttpsAndRequiresATokenOnLoopback) {
  constexpr absl::Duration kDay = absl::Hours(24);
  TlsFolder folder{::testing::TempDir() + "/page-XXXXXX"};
  ASSERT_NE(mkdtemp(folder.path.data()), nullptr);
  const CertifiedKey authority = *MakeAuthority("ours", absl::Now(), 2 * kDay);
  CertificateOrder order{.identity = {Role::kCoordinator, ""}, .lifetime = kDay};
  order.hosts = {"localhost", "127.0.0.1"};
  const CertifiedKey mine = *IssueCertificate(authority, order, absl::Now());
  std::ofstream(folder.certificate()) << mine.certificate;
  std::ofstream(folder.key()) << mine.key;
  std::ofstream(folder.authority()) << authority.certificate;
  const std::string theirs = folder.path + "/theirs.crt";
  std::ofstream(theirs) << MakeAuthority("theirs", absl::Now(), 2 * kDay)->certificate;
  const std::string url_file = folder.path + "/url";

  CoordinatorProcess coordinator(
      {"--tls=" + folder.path, "--http=127.0.0.1:0", "--http_file=" + url_file});

  std::string url;
  std::ifstream(url_file) >> url;
  ASSERT_THAT(url, StartsWith("https://127.0.0.1:"));
  const int port = std::atoi(url.substr(url.rfind(':') + 1).c_str());
  const TlsFetchOptions ours{.authority = folder.authority()};
  EXPECT_THAT(FetchOverTls(port, "/", ours), HasSubstr("<!doctype html>"));
  const HttpAnswer jobs = ParseAnswer(FetchOverTls(port, "/api/v1/jobs", ours));
  EXPECT_EQ(jobs.status, 401);
  EXPECT_THAT(jobs.body, HasSubstr("NO_CREDENTIALS"));
  EXPECT_EQ(FetchOverTls(port, "/", {.authority = theirs}), "") << "not the authority's";
  EXPECT_EQ(Fetch(port, "/").status, 0) << "there is no answer without TLS";
  EXPECT_THAT(coordinator.End(), HasSubstr("audit: GET /api/v1/jobs by anonymous from the status "
                                           "page: NO_CREDENTIALS"));
}

}  // namespace
}  // namespace muster::served_page_test
