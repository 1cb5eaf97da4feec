# Everything that is done here, by name. `make` alone lists it.
#
# CARGO_TARGET_DIR says where to build (default: target).

SHELL := /bin/bash
# One command at a time: cargo and the tests use all cores themselves.
.NOTPARALLEL:

export CARGO_TARGET_DIR ?= $(CURDIR)/target
RUN := . scripts/env.sh && find_rust &&
BUILT := $(CARGO_TARGET_DIR)/release
# What the command writes about itself: manual pages and completions, as they lie below PREFIX/share.
SHARE := $(BUILT)/share
HOME_OF := $(or $(PREFIX),/usr/local)
TO = $(DESTDIR)$(HOME_OF)
# Where zsh looks; Debian's packages use vendor-completions.
ZSH ?= share/zsh/site-functions

help: ## say what there is
	@echo "Millrace: a software accelerator card. Targets:"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | column -t -s '|'

demo: build ## a capture through a card and back, every byte compared; latencies and a histogram
	@$(CARGO_TARGET_DIR)/release/millrace demo

test: ## everything that must pass: formatting, lints, tests, models, fuzzers, sanitizers, end to end
	@scripts/test.sh

bench: build ## how fast it is, beside DPDK, Open vSwitch, a bare ring and a cache line
	@scripts/setup.sh --bench
	@scripts/bench.sh

soak: build ## kill programs and scribble on their memory for SOAK_SECONDS (default 3600): nothing may leak, nobody be hurt
	@scripts/soak.sh

build: ## target/release/millrace and millrace-bench, their manual pages, the extension library for libnfb, the socket library, libibverbs.so.1, librdmacm.so.1 and libmillrace-memory.so
	@scripts/setup.sh --build
	@$(RUN) cargo build --release --locked
	@ln -f $(BUILT)/libnfb_ext_millrace.so $(BUILT)/libnfb-ext-millrace.so
	@ln -f $(BUILT)/libmillrace_socket.so $(BUILT)/libmillrace-socket.so
	@scripts/link-verbs.sh $(BUILT)
	@$(MAKE) -s $(SHARE)/made

$(SHARE)/made: $(BUILT)/millrace $(BUILT)/millrace-bench
	@rm -rf $(SHARE) && mkdir -p $(SHARE)/man $(SHARE)/completions
	@$< man $(SHARE)/man
	@for shell in bash zsh fish; do $< completions $$shell >$(SHARE)/completions/$$shell || exit; done
	@touch $@

# Where only files are installed, what is missing is not built.
$(BUILT)/millrace $(BUILT)/millrace-bench $(BUILT)/libnfb-ext-millrace.so $(BUILT)/libmillrace-socket.so $(BUILT)/libmillrace.so $(BUILT)/libmillrace.a $(BUILT)/verbs/libibverbs.so.1 $(BUILT)/verbs/librdmacm.so.1 $(BUILT)/verbs/libmillrace-memory.so:
	@echo "$@ has not been built; 'make build' does that" >&2; exit 1

install: $(SHARE)/made $(BUILT)/libnfb-ext-millrace.so $(BUILT)/libmillrace-socket.so $(BUILT)/libmillrace.so $(BUILT)/libmillrace.a $(BUILT)/verbs/libibverbs.so.1 $(BUILT)/verbs/librdmacm.so.1 $(BUILT)/verbs/libmillrace-memory.so ## copy what `make build` has made to PREFIX (default /usr/local), below DESTDIR if given
	install -D -m 755 $(BUILT)/millrace $(TO)/bin/millrace
	install -D -m 755 $(BUILT)/millrace-bench $(TO)/bin/millrace-bench
	install -D -m 755 $(BUILT)/libnfb-ext-millrace.so $(TO)/lib/libnfb-ext-millrace.so
	install -D -m 755 $(BUILT)/libmillrace-socket.so $(TO)/lib/libmillrace-socket.so
	install -D -m 644 $(BUILT)/libmillrace.so $(TO)/lib/libmillrace.so.0
	ln -sf libmillrace.so.0 $(TO)/lib/libmillrace.so
	install -D -m 755 $(BUILT)/verbs/libibverbs.so.1 $(TO)/lib/millrace/libibverbs.so.1
	install -D -m 755 $(BUILT)/verbs/librdmacm.so.1 $(TO)/lib/millrace/librdmacm.so.1
	install -D -m 755 $(BUILT)/verbs/libmillrace-memory.so $(TO)/lib/millrace/libmillrace-memory.so
	install -D -m 644 $(BUILT)/libmillrace.a $(TO)/lib/libmillrace.a
	install -D -m 644 include/millrace.h $(TO)/include/millrace.h
	install -D -m 644 python/millrace.py $(TO)/lib/python3/dist-packages/millrace.py
	install -D -m 644 crates/c/millrace.pc $(TO)/lib/pkgconfig/millrace.pc
	install -d $(TO)/share/man/man1
	install -m 644 $(SHARE)/man/*.1 $(TO)/share/man/man1
	install -D -m 644 $(SHARE)/completions/bash $(TO)/share/bash-completion/completions/millrace
	install -D -m 644 $(SHARE)/completions/zsh $(TO)/$(ZSH)/_millrace
	install -D -m 644 $(SHARE)/completions/fish $(TO)/share/fish/vendor_completions.d/millrace.fish
	install -D -m 644 packaging/card.toml $(TO)/share/doc/millrace/examples/card.toml
	install -D -m 644 packaging/router.toml $(TO)/share/doc/millrace/examples/router.toml
	install -d $(TO)/share/doc/millrace/docs
	install -m 644 docs/*.md $(TO)/share/doc/millrace/docs
	install -d $(TO)/lib/systemd/system
	sed 's,/usr/local/,$(HOME_OF)/,' 'systemd/millrace-card@.service' >'$(TO)/lib/systemd/system/millrace-card@.service'
	chmod 644 '$(TO)/lib/systemd/system/millrace-card@.service'
	sed 's,/usr/local/,$(HOME_OF)/,' systemd/millrace-router.service >'$(TO)/lib/systemd/system/millrace-router.service'
	chmod 644 '$(TO)/lib/systemd/system/millrace-router.service'

deb: build ## a Debian package in target/debian, from what `make install` installs
	@rm -rf $(BUILT)/package
	@$(MAKE) -s install DESTDIR=$(BUILT)/package PREFIX=/usr ZSH=share/zsh/vendor-completions
	@gzip -9n $(BUILT)/package/usr/share/man/man1/*.1
	@cd $(BUILT)/package/usr && strip --strip-unneeded bin/millrace bin/millrace-bench lib/libmillrace.so.0 lib/libmillrace-socket.so lib/libnfb-ext-millrace.so
	@$(RUN) scripts/tool.sh cargo-deb 3.8.0
	@$(RUN) PATH=$(CARGO_TARGET_DIR)/tools/bin:$$PATH cargo deb --no-build --locked -p millrace-cli

deny: ## licences, sources and repeated versions of the dependencies, by cargo-deny
	@$(RUN) scripts/tool.sh cargo-deny 0.20.2
	@$(RUN) PATH=$(CARGO_TARGET_DIR)/tools/bin:$$PATH cargo deny --locked check licenses bans sources

advisories: ## known weaknesses of the dependencies, by cargo-deny; takes a network that reaches GitHub
	@$(RUN) scripts/tool.sh cargo-deny 0.20.2
	@$(RUN) PATH=$(CARGO_TARGET_DIR)/tools/bin:$$PATH cargo deny --locked check advisories

setup: ## install what building and the tests need (Debian packages, as root)
	@scripts/setup.sh

lint: ## formatting, clippy, documentation, where unsafe is, licences
	@scripts/test.sh setup format clippy doc header unsafe licences documents

unit: ## unit and integration tests only
	@scripts/test.sh setup unit

loom: ## the rings and the sleep protocol under a model checker
	@scripts/test.sh setup loom

fuzz: ## every fuzz target for FUZZ_SECONDS (default 10)
	@scripts/test.sh setup fuzz

sanitize: ## tests of the memory and the rings under AddressSanitizer, or Valgrind
	@scripts/test.sh setup sanitize

end-to-end: ## the scenarios in tests/cases through the built program
	@scripts/test.sh setup build end-to-end

header: ## include/millrace.h again, after a change of crates/c/src/boundary.rs or types.rs
	@scripts/header.sh include/millrace.h

doc: ## API documentation in target/doc
	@scripts/setup.sh --build
	@$(RUN) cargo doc --workspace --no-deps --locked
	@echo "$(CARGO_TARGET_DIR)/doc/millrace/index.html"

clean: ## remove what was built
	@$(RUN) cargo clean
	@$(MAKE) -s -C bench/peers clean
	@$(MAKE) -s -C bench/nfb clean

.PHONY: help demo test bench soak build install deb deny advisories setup lint unit loom fuzz sanitize end-to-end header doc clean
