"""The manuals that are learned from: where each lies in its Debian package, and its licence.

Owns the list of them and what is left out of each. How they are read is in ``training.readers``.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from training.readers import ANYWHERE, Pages, Pod, Source

_PYTHON: Final = Pages(
    "usr/share/doc/python3.11/html",
    "//div[@role='main']",
    "Python",
    skipped=r"^(about|bugs|contents|copyright|distutils|download|genindex|index|license|py-modindex"
    r"|search)|whatsnew/changelog|library/(intro|index)|/index\.html",
)
_POSTGRESQL: Final = Pages(
    "usr/share/doc/postgresql-doc-15/html",
    "//body",
    "PostgreSQL",
    skipped=r"^(release|features|bookindex|index|legalnotice|biblio|acronyms|errcodes|sql-keywords"
    r"|contrib-|acknowledg|resources)",
)
_SQLITE: Final = Pages(
    "usr/share/doc/sqlite3",
    "//body",
    "SQLite",
    skipped=r"^(changes|chronology|doc_|keyword_index|cves|releaselog|consortium|hirely|codeof|crew"
    r"|private|prosupport|copyright|c3ref/(objlist|funclist|constlist|c_)|docs|download|sitemap|news"
    r"|support|famous|books|different$|syntax/|session/c_|rescode|th3|index|oldnews|mingo)",
)
_RUST: Final = Pages(
    "usr/share/doc/rust-doc/html",
    "//main",
    "Rust",
    skipped=r"^(core|src|implementors|test|guide-|settings|help|grammar|tutorial|complement|index)|(first|second|2018)-edition|print\.html|std/(arch|simd)|core_arch|SUMMARY|os/raw",
)
_DJANGO: Final = Pages(
    "usr/share/doc/python-django-doc/html",
    "//div[@id='bd']//div[@class='yui-b'] | //div[@role='main']",
    "Django",
    folders=("faq", "glossary", "howto", "intro", "ref", "topics", "misc", "internals"),
    skipped=r"internals/(deprecation|security|organization)|index\.html",
)
_APACHE: Final = Pages(
    "usr/share/doc/apache2-doc/manual/en",
    "//div[@id='page-content']",
    "Apache",
    skipped=r"sitemap|license|index\.html|new_features|quickreference",
)


# English pages that a desktop's help shows.
_HELP: Final = "usr/share/help/C"
_KDE: Final = "usr/share/doc/HTML/en"


def _manual(
    label: str,
    package: str,
    licence: str,
    *,
    root: str = "usr/share/doc",
    folders: tuple[str, ...] = (),
    skipped: str = r"$^",
    suffix: str = ".html",
    is_copyleft: bool = False,
    max_share: float = 0.15,
) -> Source:
    """A package of pages of which no more than this needs to be known."""
    is_help = root in {_HELP, _KDE}
    xpath = "//body" if is_help else ANYWHERE
    pages = Pages(root, xpath, label, folders, skipped, suffix, is_help)
    return Source(
        f"{label} manual",
        package,
        licence,
        pages,
        max_share=max_share,
        is_copyleft=is_copyleft,
    )


_copyleft: Final = partial(_manual, is_copyleft=True)

_BSD: Final = "BSD-3-Clause"
_LLVM: Final = "Apache-2.0 with LLVM exception"
_QT: Final = "GFDL-1.3"

_FIRST: Final = (
    Source("Python manual", "python3.11-doc", "PSF-2.0", _PYTHON),
    Source("PostgreSQL manual", "postgresql-doc-15", "PostgreSQL", _POSTGRESQL),
    Source("SQLite manual", "sqlite3-doc", "public domain", _SQLITE),
    Source("Rust books and library manual", "rust-doc", "MIT or Apache-2.0", _RUST),
    Source("Django manual", "python-django-doc", _BSD, _DJANGO),
    Source("Apache web server manual", "apache2-doc", "Apache-2.0", _APACHE),
)
_PERL: Final = Pod("usr/share/perl", "Perl", r"delta\.|perl(hist|artistic|gpl|cn|jp|ko|tw)\.")
_LIBREOFFICE: Final = "usr/share/libreoffice/help/en-US/text"
_PERMISSIVE: Final = (
    Source("Perl manual", "perl-doc", "Artistic or GPL-1+", _PERL),
    _manual("LibreOffice", "libreoffice-help-en-us", "MPL-2.0", root=_LIBREOFFICE),
    _manual("Erlang", "erlang-doc", "Apache-2.0", root="usr", skipped=r"/wx-|/java/|/megaco-"),
    _manual("Twisted", "twisted-doc", "MIT", skipped=r"/api/"),
    _manual("SciPy", "python-scipy-doc", _BSD, skipped=r"release|gitwash"),
    _manual("scikit-learn", "python-sklearn-doc", _BSD),
    _manual("Statsmodels", "python-statsmodels-doc", _BSD, skipped=r"/dev/generated"),
    _manual("Pandas", "python-pandas-doc", _BSD),
    _manual("Astropy", "python-astropy-doc", _BSD),
    _manual("SymPy", "python-sympy-doc", _BSD),
    _manual("Xarray", "python-xarray-doc", "Apache-2.0"),
    _manual("Dask", "python-dask-doc", _BSD),
    _manual("Numba", "numba-doc", "BSD-2-Clause"),
    _manual("QuTiP", "python-qutip-doc", "CC-BY-3.0"),
    _manual("SQLAlchemy", "python-sqlalchemy-doc", "MIT", skipped=r"changelog|_changes"),
    _manual("IPython", "python-ipython-doc", _BSD),
    _manual("Pytest", "python-pytest-doc", "MIT"),
    _manual("Tornado", "python-tornado-doc", "Apache-2.0"),
    _manual("Docutils", "docutils-doc", "public domain"),
    _manual("Sphinx", "sphinx-doc", "BSD-2-Clause"),
    _manual("Scrapy", "python-scrapy-doc", _BSD),
    _manual("Hypothesis", "python-hypothesis-doc", "MPL-2.0"),
    _manual("Cryptography", "python-cryptography-doc", "Apache-2.0 or BSD-3-Clause"),
    _manual("Flask", "python-flask-doc", _BSD),
    _manual("Pillow", "python-pil-doc", "HPND"),
    _manual("FontTools", "python-fonttools-doc", "MIT"),
    _manual("SCons", "scons-doc", "MIT"),
    _manual("Snakemake", "snakemake-doc", "MIT"),
    _manual("Borg", "borgbackup-doc", _BSD),
    _manual("Xonsh", "xonsh-doc", "BSD-2-Clause"),
    _manual("Nova", "nova-doc", "Apache-2.0"),
    _manual("Keystone", "keystone-doc", "Apache-2.0"),
    _manual("Neutron", "neutron-doc", "Apache-2.0"),
    _manual("Cinder", "cinder-doc", "Apache-2.0"),
    _manual("Ironic", "ironic-doc", "Apache-2.0"),
    _manual("Octavia", "octavia-doc", "Apache-2.0"),
    _manual("Swift", "swift-doc", "Apache-2.0"),
    _manual("Heat", "heat-doc", "Apache-2.0"),
    _manual("Manila", "manila-doc", "Apache-2.0"),
    _manual("Glance", "glance-doc", "Apache-2.0"),
    _manual("Designate", "designate-doc", "Apache-2.0"),
    _manual("Trove", "trove-doc", "Apache-2.0"),
    _manual("Ceilometer", "ceilometer-doc", "Apache-2.0"),
    _manual("Barbican", "barbican-doc", "Apache-2.0"),
    _manual("LLVM", "llvm-15-doc", _LLVM, skipped=r"AMDGPU/"),
    _manual("Clang", "clang-15-doc", _LLVM),
    _manual("Boost", "libboost1.81-doc", "BSL-1.0"),
    _manual("CMake", "cmake-doc", _BSD, skipped=r"release/"),
    _manual("BIND", "bind9-doc", "MPL-2.0", skipped=r"notes"),
    _manual("Kea", "kea-doc", "MPL-2.0"),
    _manual("Kerberos", "krb5-doc", "MIT"),
    # Its authors say MIT or Apache-2.0; what Debian says asks more.
    _copyleft("Racket", "racket-doc", "LGPL-2.1+"),
    _manual("Haskell", "ghc-doc", _BSD, skipped=r"/src/"),
    _manual("Node", "nodejs-doc", "MIT"),
    _manual("Nim", "nim-doc", "MIT"),
    _manual("Prolog", "swi-prolog-doc", "BSD-2-Clause", root="usr/share/swi-prolog"),
    _manual("Ada", "ada-reference-manual-2012", "Ada Reference Manual licence"),
    _manual("Steel Bank Lisp", "sbcl-doc", "public domain"),
    _manual("Tomcat", "tomcat10-docs", "Apache-2.0", root="usr/share/tomcat10-docs"),
    _manual("Ant", "ant-doc", "Apache-2.0", skipped=r"/api/"),
    _manual("Gradle", "gradle-doc", "Apache-2.0"),
    _manual("Z shell", "zsh-doc", "MIT-like"),
    _manual("Varnish", "varnish-doc", "BSD-2-Clause"),
    _manual("Postfix", "postfix-doc", "IPL-1.0 or EPL-2.0"),
    _manual("Open vSwitch", "openvswitch-doc", "Apache-2.0"),
    _manual("DPDK", "dpdk-doc", _BSD),
    _manual("Ganeti", "ganeti-doc", "BSD-2-Clause"),
    _manual("OpenAFS", "openafs-doc", "IPL-1.0"),
    _manual("X library", "libx11-doc", "MIT"),
    _manual("Visual novels", "renpy-doc", "MIT"),
)
_COPYLEFT: Final = (
    _copyleft("Desktop", "gnome-user-docs", "CC-BY-SA-3.0", root=_HELP, suffix=".page"),
    _copyleft("GNOME development", "gnome-devel-docs", "CC-BY-SA-3.0", root=_HELP, suffix=".page"),
    _copyleft("Astronomy", "kstars-data", "GFDL-1.2+", root=_KDE, suffix=".docbook"),
    _copyleft("Household money", "kmymoney-common", "GFDL-1.2+", root=_KDE, suffix=".docbook"),
    _copyleft("Collections", "tellico-doc", "GFDL-1.2+", root=_KDE, suffix=".docbook"),
    _copyleft("MATE", "mate-user-guide", "GFDL-1.1+", root=_HELP, suffix=".xml"),
    _copyleft("Gnumeric", "gnumeric-doc", "GPL-2+", root=_HELP, suffix=".xml"),
    _copyleft("GIMP", "gimp-help-en", "GFDL-1.2+", root="usr/share/gimp"),
    _copyleft(
        "GnuCash",
        "gnucash-docs",
        "GFDL-1.1+",
        folders=("gnucash-docs/gnucash-guide-en", "gnucash-docs/gnucash-help-en"),
    ),
    _copyleft(
        "Debian handbook",
        "debian-handbook",
        "CC-BY-SA-3.0 or GPL-2+",
        root="usr/share/doc/debian-handbook/html/en-US",
    ),
    _copyleft("Debian reference", "debian-reference-en", "GPL-2+", root="usr/share"),
    _copyleft("Debian developers", "developers-reference", "GPL-2+", root="usr/share"),
    _copyleft("Debian policy", "debian-policy", "GPL-2+"),
    _copyleft(
        "Debian installation",
        "installation-guide-amd64",
        "GPL-2",
        root="usr/share/doc/installation-guide-amd64/en",
    ),
    _copyleft("Debian questions", "debian-faq", "GPL-2+", suffix=".en.html"),
    _copyleft("Aptitude", "aptitude-doc-en", "GPL-2+"),
    _copyleft("Securing Debian", "harden-doc", "GPL-2+", folders=("harden-doc/html/en-US",)),
    _copyleft("Live systems", "live-manual-html", "GPL-3+", suffix=".en.html"),
    _copyleft("Git", "git-doc", "GPL-2", skipped=r"RelNotes"),
    _copyleft(
        "Linux", "linux-doc-6.1", "GPL-2", skipped=r"translations|html/gpu/amd", max_share=0.05
    ),
    _copyleft("Octave", "octave-doc", "GPL-3+"),
    _copyleft("Maxima", "maxima-doc", "GPL-2+", skipped=r"/(de|es|pt|pt_BR|ja)/"),
    _copyleft(
        "Sage", "sagemath-doc", "CC-BY-SA-3.0", skipped=r"html/(?!en/)", root="usr/share/doc"
    ),
    _copyleft("GAP", "gap-doc", "GPL-2+", root="usr/share"),
    _copyleft("R", "r-doc-html", "GPL-2", root="usr/share/R"),
    _copyleft(
        "LilyPond",
        "lilypond-doc-html",
        "GFDL-1.3+",
        skipped=r"\.[a-z]{2}\.html|internals|/(de|es|fr|it|ja|ca|cs|hu|nl|zh|pt)/",
    ),
    _copyleft("Csound", "csound-doc", "GFDL-1.2+"),
    _copyleft("GRASS", "grass-doc", "GPL-2+"),
    _copyleft(
        "C++ reference",
        "cppreference-doc-en-html",
        "CC-BY-SA-3.0 or GFDL-1.3+",
        root="usr/share/cppreference",
    ),
    _copyleft("C++ annotations", "c++-annotations-html", "GPL-2+"),
    _copyleft(
        "Java",
        "openjdk-17-doc",
        "GPL-2 with Classpath exception",
        root="usr",
        skipped=r"class-use|index-files|package-use",
        max_share=0.02,
    ),
    _copyleft("Qt", "qtbase5-doc-html", _QT, root="usr/share/qt5/doc"),
    _copyleft("Qt Quick", "qtdeclarative5-doc-html", _QT, root="usr/share/qt5/doc"),
    _copyleft("Qt multimedia", "qtmultimedia5-doc-html", _QT, root="usr/share/qt5/doc"),
    _copyleft("GLib", "libglib2.0-doc", "LGPL-2.1+", root="usr/share/gtk-doc"),
    _copyleft("PNG guide", "png-definitive-guide", "GFDL-1.1+"),
    _copyleft("Wireshark", "wireshark-doc", "GPL-2+"),
    _copyleft("Exim", "exim4-doc-html", "GPL-2+"),
    _copyleft("Virtual machines", "libvirt-doc", "LGPL-2.1+"),
    _copyleft("Xen", "xen-doc", "GPL-2"),
    _copyleft("Slurm", "slurm-wlm-doc", "GPL-2+"),
    _copyleft("Celery", "python-celery-doc", "CC-BY-SA-4.0", skipped=r"history"),
    _copyleft("Buildbot", "buildbot-doc", "GPL-2", skipped=r"relnotes"),
    _copyleft("Breezy", "brz-doc", "GPL-2+", skipped=r"release-notes"),
    _copyleft("Rsyslog", "rsyslog-doc", "GPL-3+ and Apache-2.0"),
    _copyleft("Shorewall", "shorewall-doc", "GFDL-1.2+"),
    _copyleft("Mailman", "mailman3-doc", "GPL-3+"),
    _copyleft("Uninterruptible power", "nut-doc", "GPL-2+"),
    _copyleft("Routing", "frr-doc", "GPL-2+"),
    _copyleft("Fish shell", "fish-common", "GPL-2"),
    _copyleft("Kitty", "kitty-doc", "GPL-3"),
    _copyleft("Yade", "yade-doc", "GPL-2+"),
    _copyleft("MDAnalysis", "python-mdanalysis-doc", "GPL-2+"),
    _copyleft("Lava", "lava-server-doc", "GPL-2+"),
    _copyleft("Translation", "translate-toolkit-doc", "GPL-2+"),
    _copyleft("Xapian", "xapian-doc", "GPL-2+"),
    _copyleft("Request tracker", "rt5-doc-html", "GPL-2"),
    _copyleft("CLISP", "clisp-doc", "GFDL-1.2+ or GPL-2+"),
)
MANUALS: Final = (*_FIRST, *_PERMISSIVE, *_COPYLEFT)
COPYLEFT_LABELS: Final = frozenset(
    source.name.removesuffix(" manual") for source in MANUALS if source.is_copyleft
)
"""What goes before the titles of texts that are trained on, but not in the repository."""
