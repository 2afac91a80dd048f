// The certificates of a cluster that requires authentication on its control plane.
#pragma once

#include <string>

#include "lib/security/certificate.h"
#include "lib/security/identity.h"
#include "lib/security/tls_folder.h"

namespace muster {

// Creates one authority, and a folder for --tls of each role, in a folder of the test. The admin's
// name is "ann"; members' certificates have no name. Fails the test if it cannot create something.
// Not thread-safe.
class Certificates {
 public:
  Certificates();

  TlsFolder Folder(Role role) const;
  std::string Flag(Role role) const;  // "--tls=FOLDER"
  // Returns the folder of a client that trusts the authority but has no certificate: ca.crt only.
  std::string FolderOfNobody() const { return home_ + "/nobody"; }

  // Gives every role a new key and a new certificate together, as a mounted Secret changes.
  void Renew();

  // Returns the SHA-256 of the coordinator's newest certificate.
  const std::string& coordinators() const { return coordinators_; }

 private:
  const std::string home_;
  const CertifiedKey authority_;
  int renewals_ = 0;
  std::string coordinators_;
};

}  // namespace muster
