#!/usr/bin/env python3
"""ferry doctor: says what the machine offers, for people and machines."""

import cli


class Doctor(cli.Case):
    def test_json(self):
        value = self.good("doctor", "--json").json()
        self.fits(value, "doctor")
        self.assertGreater(len(value["checks"]), 3)
        self.assertEqual(value["warnings"], sum(not c["good"] for c in value["checks"]))

    def test_people(self):
        text = self.good("doctor").out.decode()
        for check in self.good("doctor", "--json").json()["checks"]:
            self.assertIn(check["name"], text)


if __name__ == "__main__":
    cli.main()
