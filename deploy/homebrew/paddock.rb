# A formula for a tap (`brew tap-new NAME/tap`, copy this file to Formula/). UNTESTED: nothing here has run it.
#
# `homepage`, `url` and `sha256` are placeholders: `url` and `sha256` are those of the source package that `make dist` builds: set them for a release. pip takes the
# dependencies as wheels in the tested versions, so nothing is compiled; homebrew-core would want a `resource` for each.
class Paddock < Formula
  include Language::Python::Virtualenv

  desc "One server for every GGUF model on a machine, OpenAI- and llama.cpp-compatible"
  homepage "https://example.org/paddock"
  url "https://example.org/paddock/paddock_llm-0.1.0.tar.gz"
  sha256 "0000000000000000000000000000000000000000000000000000000000000000"
  license "MIT"

  depends_on "python@3.13"

  def install
    virtualenv_create(libexec, "python3.13", without_pip: false)
    system libexec/"bin/python", "-m", "pip", "install", "--only-binary=:all:",
           "--constraint=#{buildpath}/constraints.txt", buildpath
    bin.install_symlink libexec/"bin/paddock"
  end

  service do
    run [opt_bin/"paddock", "serve", "--models-dir", var/"paddock/models"]
    keep_alive true
    log_path var/"log/paddock.log"
    error_log_path var/"log/paddock.log"
  end

  def caveats
    <<~EOS
      A small model to start with: paddock pull demo && paddock serve
      The service serves the models in #{var}/paddock/models.
    EOS
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/paddock --version")
    assert_match "--models-dir", shell_output("#{bin}/paddock serve --help")
  end
end
