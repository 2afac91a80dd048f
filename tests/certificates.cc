#include "tests/certificates.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

constexpr absl::Duration kDay = absl::Hours(24);
constexpr Role kRoles[] = {Role::kCoordinator, Role::kPs, Role::kWorker, Role::kAdmin};

std::string MakeFolder() {
  std::string path = ::testing::TempDir() + "/tls-XXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

void Write(const std::string& path, const std::string& content) {
  std::ofstream(path + ".new") << content;
  ASSERT_EQ(rename((path + ".new").c_str(), path.c_str()), 0);
}

}  // namespace

Certificates::Certificates()
    : home_(MakeFolder()), authority_(*MakeAuthority("test", absl::Now(), 30 * kDay)) {
  for (const Role role : kRoles) {
    EXPECT_EQ(mkdir(Folder(role).path.c_str(), 0700), 0);
    Write(Folder(role).authority(), authority_.certificate);
  }
  EXPECT_EQ(mkdir(FolderOfNobody().c_str(), 0700), 0);
  Write(TlsFolder{FolderOfNobody()}.authority(), authority_.certificate);
  Renew();
}

TlsFolder Certificates::Folder(Role role) const {
  return {absl::StrCat(home_, "/", RoleName(role))};
}

std::string Certificates::Flag(Role role) const { return "--tls=" + Folder(role).path; }

void Certificates::Renew() {
  for (const Role role : kRoles) {
    CertificateOrder order{.identity = {role, role == Role::kAdmin ? "ann" : ""}, .lifetime = kDay};
    if (role == Role::kCoordinator) order.hosts = {"127.0.0.1"};
    const auto mine = IssueCertificate(authority_, order, absl::Now());
    ASSERT_TRUE(mine.ok()) << mine.status();
    Write(Folder(role).key(), mine->key);
    Write(Folder(role).certificate(), mine->certificate);
    if (role == Role::kCoordinator) coordinators_ = ReadCertificate(mine->certificate)->sha256;
  }
}

}  // namespace muster
