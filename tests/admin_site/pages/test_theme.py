"""The pages in whatever theme the site has."""

from __future__ import annotations

from pages.fleet import PAGES, FleetCase


class Theme(FleetCase):
    def test_every_page_is_there_with_its_buttons(self) -> None:
        message = self.publish("x")
        self.claim()
        for page in PAGES:
            assert 'class="fleet"' in self.see(page)
        assert 'value="requeue"' in self.see("message", message)
        assert "Requeued 1 message" in self.act("message", "requeue", message).content.decode()
